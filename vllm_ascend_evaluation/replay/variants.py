# SPDX-License-Identifier: Apache-2.0
"""What is compared: named sets of environment variables, each for a process of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.core.policy.switches import DSV4_COMPRESSED_BLOCK_SIZES
from vllm_ascend.prefix_cache_config import FORMER_VARIABLES, VARIABLES, load_config

ASCEND_LAYOUT = "dsv4-flash-a3"
GPU_LAYOUT = "dsv4-flash-gpu"
RINGS_LAYOUT = "dsv4-flash-a3-rings"
ASCEND_LAYOUTS = (ASCEND_LAYOUT, RINGS_LAYOUT)
LAYOUTS = {
    ASCEND_LAYOUT: "vllm-ascend's layout of DeepSeek-V4-Flash",
    GPU_LAYOUT: "vLLM's own layout of DeepSeek-V4-Flash for GPUs",
    RINGS_LAYOUT: "a prototype of vllm-ascend's, with compressor state in rings",
}
_GPU_BLOCK_SIZE = 256  # the only one that vLLM has for this model
_APPLY = "VLLM_ASCEND_APPLY_DSV4_PATCH"
RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
PARTIAL = "VLLM_ASCEND_DSV4_PARTIAL_HITS"
PIN = "VLLM_PIN_SWA_TOKENS"
PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE"
# What ``--eviction`` names -> the variant that has it.
_EVICTIONS = {"lru": "best:VLLM_ASCEND_EVICTION=lru", "protect": "best"}


@dataclass(frozen=True)
class Variant:
    """One side of a comparison.

    Attributes:
        name: How reports call it.
        patched: Whether the project's patches are installed at all.
        environment: The project's variables that are set.
        layout: Overrides the command's layout.
        block_size: Overrides the command's block size.
        description: What it is, in words.
    """

    name: str
    patched: bool
    environment: dict[str, str] = field(default_factory=dict)
    layout: str | None = None
    block_size: int | None = None
    description: str = ""


def _built_in(name: str, description: str, **settings: str) -> Variant:
    return Variant(name, patched=True, environment=settings, description=description)


_BUILT_IN = {
    variant.name: variant
    for variant in (
        Variant("stock", patched=False, description="vLLM alone, without this project"),
        _built_in("upstream-like", "the layout as vllm-ascend caches it: nothing switched on"),
        _built_in(
            "retention-0",
            "keeps windows and state only where prompts and answers end and where prompts part",
            **{RETENTION: "0"},
        ),
        _built_in(
            "retention-auto",
            "as retention-0, and at every 32,768 tokens",
            **{RETENTION: "auto"},
        ),
        _built_in(
            "partial",
            "as retention-auto; and hits may end inside a compressed block, which is copied",
            **{RETENTION: "auto", PARTIAL: "1"},
        ),
        _built_in(
            "pinned",
            "caches as upstream, but evicts the windows at ends of prefill chunks last",
            **{PIN: "1"},
        ),
        _built_in(
            "best",
            "the profile: retention auto, partial hits, sparse state, spare tails, and returning "
            "prompts are given up last",
            **{PROFILE: "best"},
        ),
    )
}
BUILT_IN_NAMES = tuple(_BUILT_IN)


def parse_variants(texts: Sequence[str], default_layout: str) -> tuple[list[Variant], list[str]]:
    """Turn every ``--variant`` into a variant; one that is there already is left out.

    Args:
        texts: See :func:`parse_variant`, as for the errors.
        default_layout: The command's layout.

    Returns:
        The variants, and remarks for the user: on each that is left out or not quite what was
        asked for.

    Raises:
        BadInputError: Also if two have one name and different settings.
    """
    variants: dict[str, Variant] = {}
    remarks = []
    for text in texts:
        variant, remark = parse_variant(text, default_layout)
        if remark:
            remarks.append(remark)
        if variant.name in variants:
            remarks.append(f"--variant {text}: {variant.name} is there already and is run once")
        if variants.setdefault(variant.name, variant) != variant:
            raise BadInputError(f"--variant {variant.name} is given twice with different settings")
    return list(variants.values()), remarks


def parse_variant(text: str, default_layout: str) -> tuple[Variant, str | None]:
    """Turn a ``--variant`` into a variant.

    Args:
        text: A built-in name, or ``NAME:VARIABLE=VALUE,...`` (``block_size=N`` is allowed among
            them); either may end in ``@LAYOUT``. Settings behind a built-in name come on top of
            its own, and the variant is called by the whole text.
        default_layout: The command's layout.

    Returns:
        The variant, and a remark for the user if it is not quite what was asked for.

    Raises:
        BadInputError: The text is malformed or a value is not allowed.
    """
    body, _, layout = text.partition("@")
    name, colon, settings = body.partition(":")
    if colon:
        base = _BUILT_IN.get(name)
        variant = _with_settings(base or Variant(name, patched=True), settings)
        # Never another thing under a built-in name.
        shown = ", ".join(f"{key}={value}" for key, value in variant.environment.items())
        variant = replace(
            variant, name=body if base else name, description=shown or "nothing switched on"
        )
    elif name in _BUILT_IN:
        variant = _BUILT_IN[name]
    else:
        raise BadInputError(
            f"--variant {text}: unknown; built in are {', '.join(BUILT_IN_NAMES)}, or give "
            "NAME:VARIABLE=VALUE,..."
        )
    if layout:
        variant = replace(
            variant,
            name=f"{variant.name}@{layout}",
            layout=layout,
            description=f"{variant.description}; on {LAYOUTS.get(layout, layout)}",
        )
    return _fit_to_layout(variant, layout or default_layout)


def _with_settings(base: Variant, settings: str) -> Variant:
    name, block_size = base.name, base.block_size
    environment = dict(base.environment)
    if not settings:
        raise BadInputError(f"--variant {name}: expected NAME:VARIABLE=VALUE,...")
    for setting in filter(None, settings.split(",")):
        key, equals, value = setting.partition("=")
        if not equals or not name:
            raise BadInputError(f"--variant {name}:{settings}: expected NAME:VARIABLE=VALUE,...")
        if key == "block_size":
            block_size = _block_size(value)
        elif key in {variable.name for variable in VARIABLES}:
            environment[key] = value
        else:
            error = FORMER_VARIABLES.get(key, f"{key} is not a variable of this project")
            raise BadInputError(f"--variant {name}: {error}")
    if environment and not base.patched:
        raise BadInputError(f"--variant {name}: runs without the patches, variables mean nothing")
    _check_values(f"--variant {name}", environment)
    return replace(base, environment=environment, block_size=block_size)


def _check_values(what: str, environment: dict[str, str]) -> None:
    try:
        load_config(environment)
    except ValueError as error:
        raise BadInputError(f"{what}: {error}") from error


def _block_size(value: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", value, re.ASCII):
        raise BadInputError(f"block_size={value}: expected a positive number")
    return int(value)


def _fit_to_layout(variant: Variant, layout: str) -> tuple[Variant, str | None]:
    if layout not in ASCEND_LAYOUTS:
        return variant, None
    if not variant.patched:
        # vLLM counts tokens where Ascend's specs count rows: it cannot build this layout.
        name = variant.name.replace("stock", "upstream-like", 1)
        stand_in = replace(_BUILT_IN["upstream-like"], name=name, block_size=variant.block_size)
        return _fit_to_layout(stand_in, layout)[0], (
            f"stock vLLM cannot carry the layout {layout}: {name!r} stands in for it "
            f"(stock vLLM itself: --variant stock@{GPU_LAYOUT})"
        )
    environment = {_APPLY: "1", **variant.environment}
    return replace(variant, environment=environment), None


def with_variables(name: str, environment: dict[str, str], layout: str) -> Variant:
    """Return a patched variant for a layout in which exactly these variables are set.

    Raises:
        BadInputError: A value is not allowed.
    """
    _check_values(name, environment)
    variant, _ = _fit_to_layout(Variant(name, patched=True, environment=environment), layout)
    return variant


def with_evictions(variants: Sequence[str], evictions: Sequence[str]) -> list[str]:
    """Return variants, and behind them ``best`` under some rules of eviction, each of these once.

    Raises:
        BadInputError: There is no such rule.
    """
    for rule in evictions:
        if rule not in _EVICTIONS:
            raise BadInputError(f"--eviction {rule}: allowed are {', '.join(_EVICTIONS)}")
    rules = dict.fromkeys(map(_EVICTIONS.__getitem__, evictions))
    return [*variants, *(rule for rule in rules if rule not in variants)]


def default_variants(layout: str) -> list[str]:
    """Return what to compare if the user names nothing: as it was, and what we recommend."""
    if layout == RINGS_LAYOUT:  # nothing else takes its snapshots
        return ["best"]
    return ["upstream-like" if layout == ASCEND_LAYOUT else "stock", "best"]


def check_layout(layout: str, option: str = "--layout") -> None:
    """Check that a layout can be there, without the seconds that building it takes.

    Args:
        layout: As ``--layout`` takes it.
        option: What named it.

    Raises:
        BadInputError: It is neither a known name nor a file or folder.
    """
    if layout not in LAYOUTS and not Path(layout).exists():
        raise BadInputError(
            f"{option} {layout}: allowed are {', '.join(LAYOUTS)} and a Hugging Face config.json"
        )


def fit_block_size(layout: str, block_size: int, option: str = "--block-size") -> int:
    """Return the block size that a layout has when ``block_size`` is asked for by an option.

    Raises:
        BadInputError: Names the option, the size and what is allowed.
    """
    if layout == GPU_LAYOUT:
        return _GPU_BLOCK_SIZE
    if layout in ASCEND_LAYOUTS and block_size not in DSV4_COMPRESSED_BLOCK_SIZES:
        raise BadInputError(f"{option} {block_size}: {layout} has 32, 64 and 128")
    if block_size < 1:
        raise BadInputError(f"{option} {block_size}: expected a positive number")
    return block_size
