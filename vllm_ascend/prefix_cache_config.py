# SPDX-License-Identifier: Apache-2.0
"""The project's environment variables: read here, once, into a frozen config.

Nothing else in the package looks at the environment. A value that cannot be used raises
``ValueError`` naming the variable, the value and what is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from vllm_ascend.core.policy.switches import DSV4_COMPRESSED_BLOCK_SIZES, PrefixCacheConfig

_RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
_ADMISSION = "VLLM_ASCEND_ADMISSION"
_DP_ROUTING = "VLLM_ASCEND_DP_ROUTING"
AUTO = "auto"
_MOST_DIGITS = 18  # what fits into 64 bits, whatever the digits are


def _flag(name: str, raw: str) -> bool:
    if raw not in ("0", "1"):
        raise ValueError(f"{name}={raw!r} is invalid: allowed are 0 and 1")
    return raw == "1"


def _is_whole_number(raw: str) -> bool:
    # Python refuses to read thousands of digits, with an error that names no variable.
    return raw.isascii() and raw.isdigit() and len(raw) <= _MOST_DIGITS


def _non_negative_int(name: str, raw: str) -> int:
    if not _is_whole_number(raw):
        raise ValueError(
            f"{name}={raw!r} is invalid: allowed are whole numbers from 0 up, of at most "
            f"{_MOST_DIGITS} digits"
        )
    return int(raw)


def _retention(name: str, raw: str) -> int | str:
    if raw == AUTO:
        return raw
    if not _is_whole_number(raw):
        raise ValueError(
            f"{name}={raw!r} is invalid: allowed are 'auto', 0, or a number of tokens (at most "
            f"{_MOST_DIGITS} digits) that is a multiple of the prefix cache's alignment"
        )
    return int(raw)


def _compressed_block_size(name: str, raw: str) -> int:
    if raw not in {str(size) for size in DSV4_COMPRESSED_BLOCK_SIZES}:
        raise ValueError(f"{name}={raw!r} is invalid: allowed are 32, 64 and 128")
    return int(raw)


def _eviction(name: str, raw: str) -> str:
    if raw not in ("lru", "protect"):
        raise ValueError(f"{name}={raw!r} is invalid: allowed are 'lru' and 'protect'")
    return raw


def _dp_routing(name: str, raw: str) -> str:
    if raw != "cache":
        raise ValueError(
            f"{name}={raw!r} is invalid: allowed is 'cache' (leave it unset for vLLM's own choice)"
        )
    return raw


def _admission(name: str, raw: str) -> str:
    if raw not in ("fcfs", "cached"):
        raise ValueError(f"{name}={raw!r} is invalid: allowed are 'fcfs' and 'cached'")
    return raw


def _profile(name: str, raw: str) -> str:
    if raw not in ("stock", "best"):
        raise ValueError(f"{name}={raw!r} is invalid: allowed are 'stock' and 'best'")
    return raw


@dataclass(frozen=True)
class Variable:
    """One environment variable of the project.

    Attributes:
        name: The variable.
        field: The field of :class:`PrefixCacheConfig` that it sets.
        default: The value in force when the variable is unset.
        parse: Turns ``(name, raw value)`` into the field's value or raises ``ValueError``.
        values: The allowed values, for people.
        effect: What it does, in one sentence, for people.
    """

    name: str
    field: str
    default: Any
    parse: Callable[[str, str], Any]
    values: str
    effect: str


VARIABLES: tuple[Variable, ...] = (
    Variable(
        name="VLLM_ASCEND_APPLY_DSV4_PATCH",
        field="apply_dsv4_patch",
        default=False,
        parse=_flag,
        values="0, 1",
        effect="Turns on Ascend's DeepSeek-V4 cache layout and coordinator.",
    ),
    Variable(
        name=_RETENTION,
        field="retention",
        default=None,
        parse=_retention,
        values="auto, 0, N",
        effect=(
            "Which sliding-window tails stay cached. 0: those at the end of every prompt. N: "
            "also one every N tokens (a multiple of the alignment in force). auto: N is 32768. "
            "Unset: all of them, as in vLLM."
        ),
    ),
    Variable(
        name="VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE",
        field="dsv4_compressed_kv_block_size",
        default=None,
        parse=_compressed_block_size,
        values="32, 64, 128",
        effect=(
            "Rows of a compressed block. Window blocks, state blocks and page padding scale with "
            "it. Default: --block-size if given, else 128."
        ),
    ),
    Variable(
        name="VLLM_ASCEND_DSV4_PARTIAL_HITS",
        field="partial_hits",
        default=False,
        parse=_flag,
        values="0, 1",
        effect=("Lets hits end at every granule (128 tokens), also inside a compressed block."),
    ),
    Variable(
        name="VLLM_ASCEND_DSV4_SPARSE_STATE",
        field="sparse_state",
        default=False,
        parse=_flag,
        values="0, 1",
        effect=(
            "Gives compressor state blocks only to rows that will be read: the end of a prefill "
            "chunk, and the open windows of a running request."
        ),
    ),
    Variable(
        name="VLLM_ASCEND_SPARE_TAILS",
        field="spare_tails",
        default=False,
        parse=_flag,
        values="0, 1",
        effect="Keeps the tails at all other boundaries until their memory is needed.",
    ),
    Variable(
        name="VLLM_ASCEND_EVICTION",
        field="eviction",
        default="lru",
        parse=_eviction,
        values="lru, protect",
        effect=(
            "Which kept block is given up first. lru: the least recently used one. protect: the "
            "same, but blocks of returning prompts go last, in up to half of the free memory. A "
            "prompt returns if three quarters of it were sent before."
        ),
    ),
    Variable(
        name="VLLM_ASCEND_PREFIX_CACHE_PROFILE",
        field="profile",
        default="stock",
        parse=_profile,
        values="stock, best",
        effect=(
            "best sets retention auto, partial hits, sparse state, spare tails, eviction "
            "protect and admission cached. A variable that is set itself wins."
        ),
    ),
    Variable(
        name="VLLM_PIN_SWA_TOKENS",
        field="pin_swa_tokens",
        default=False,
        parse=_flag,
        values="0, 1",
        effect=(
            "Gives up the windows at the ends of prefill chunks last, oldest first. All other "
            "tails stay until their memory is needed."
        ),
    ),
    Variable(
        name="VLLM_PIN_MIN_DROP_SIZE",
        field="pin_min_drop_size",
        default=16,
        parse=_non_negative_int,
        values="N",
        effect=(
            "A window is pinned only if every windowed group drops at least this many blocks in "
            "one step."
        ),
    ),
    Variable(
        name=_ADMISSION,
        field="admission",
        default="fcfs",
        parse=_admission,
        values="fcfs, cached",
        effect=(
            "Who is let in where memory is short. fcfs: whoever came first. cached: whoever has "
            "the most of its prompt cached, but 50 that came later at most before anybody; after a "
            "prompt returns whose rows are gone, those that run leave up to half of the memory to "
            "the cache."
        ),
    ),
    Variable(
        name=_DP_ROUTING,
        field="dp_routing",
        default=None,
        parse=_dp_routing,
        values="cache",
        effect=(
            "Which data-parallel rank gets a request: `cache` weighs what each rank has cached "
            "against what waits there; unset leaves the choice to vLLM, which counts requests."
        ),
    ),
)


# What the profile `best` switches on, where the variable itself is unset.
_BEST_PROFILE: dict[str, Any] = {
    "retention": "auto",
    "partial_hits": True,
    "sparse_state": True,
    "spare_tails": True,
    "eviction": "protect",
    "admission": "cached",
}

# Names that the project no longer reads -> the error for those who still set them.
FORMER_VARIABLES: Mapping[str, str] = {
    "VLLM_ASCEND_DSV4_PARTIAL_MIN_HIT_TOKENS": (
        "VLLM_ASCEND_DSV4_PARTIAL_MIN_HIT_TOKENS is no longer read: unset it; a hit inside a "
        "block counts whatever it gains"
    ),
    "VLLM_ASCEND_PROTECT_RETURNING": (
        "VLLM_ASCEND_PROTECT_RETURNING is no longer read: unset it, and set "
        "VLLM_ASCEND_EVICTION=protect (or lru) instead"
    ),
}


def load_config(environ: Mapping[str, str] | None = None) -> PrefixCacheConfig:
    """Read and validate the project's variables.

    Args:
        environ: What to read; the process's environment by default. An empty value counts as
            unset, as in a manifest that leaves a variable blank.

    Returns:
        The frozen configuration; the same object as long as the values are the same. A retention
        interval that is vLLM's own affair (:func:`is_left_to_vllm`) is not in it.

    Raises:
        ValueError: A value is not allowed, or a variable of an earlier version is set.
    """
    source = os.environ if environ is None else environ
    for name, error in FORMER_VARIABLES.items():
        if source.get(name):
            raise ValueError(error)
    return _parse(tuple(source.get(variable.name, "") for variable in VARIABLES))


@lru_cache(maxsize=64)
def _parse(raw_values: tuple[str, ...]) -> PrefixCacheConfig:
    raw_of = {v.name: raw for v, raw in zip(VARIABLES, raw_values, strict=True) if raw}
    if _is_left_to_vllm(raw_of):
        del raw_of[_RETENTION]
    fields: dict[str, Any] = {}
    for variable in VARIABLES:
        if raw := raw_of.get(variable.name):
            fields[variable.field] = variable.parse(variable.name, raw)
    if fields.get("profile") == "best":
        fields["retention_from_profile"] = "retention" not in fields
        fields = {**_BEST_PROFILE, **fields}
    return PrefixCacheConfig(**fields)


def is_left_to_vllm(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the retention interval that is set is vLLM's own affair.

    vLLM 0.23.0 reads the variable itself. There it is ours only beside a switch of ours, or with a
    value that vLLM does not know (``auto``): without any of ours, vLLM does what it does, and says
    what it says of a value that it cannot use.

    Args:
        environ: As for :func:`load_config`.
    """
    source = os.environ if environ is None else environ
    return _is_left_to_vllm({v.name: raw for v in VARIABLES if (raw := source.get(v.name))})


def _is_left_to_vllm(raw_of: Mapping[str, str]) -> bool:
    is_ours = raw_of.get(_RETENTION, AUTO) == AUTO or any(
        raw_of.get(variable.name, "") not in ("", _raw(variable.default))
        for variable in VARIABLES
        # The latter two change nothing in a cache.
        if variable.name not in (_RETENTION, _DP_ROUTING, _ADMISSION)
    )
    return not is_ours and _vllm_reads_retention()


def _raw(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


@cache
def _vllm_reads_retention() -> bool:
    from vllm_ascend.deployment import is_over_checkout, vllm_distribution
    from vllm_ascend.releases import find_release

    if is_over_checkout():  # there our coordinator has taken the place of the one that reads it
        return False
    found = vllm_distribution()
    release = None if found is None else find_release(found.version)
    return release is not None and release.reads_retention_variable


def block_hashes_are_seeded() -> bool:
    """Whether vLLM names equal blocks alike in every process, by ``PYTHONHASHSEED``."""
    return os.environ.get("PYTHONHASHSEED") is not None


def child_environment(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child process in which only ``overrides`` switch us on.

    Starts from this process's environment, drops every variable of the project, fixes
    ``PYTHONHASHSEED`` (vLLM seeds its block hashes with it) and applies ``overrides``.
    """
    names = {*FORMER_VARIABLES, *(variable.name for variable in VARIABLES)}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["PYTHONHASHSEED"] = "0"
    environment.update(overrides)
    return environment


def become_child(overrides: Mapping[str, str]) -> None:
    """Give this process, a fork, the environment that :func:`child_environment` describes."""
    environment = child_environment(overrides)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def process_environment() -> dict[str, str]:
    """Return a copy of this process's environment, to be judged; it configures nothing."""
    return dict(os.environ)


def value_of(name: str) -> str | None:
    """Return what this process's environment holds under a name; ``None`` if it is unset."""
    return os.environ.get(name)


def unset_blank_variables() -> None:
    """Unset the variables of the project that are blank in this process's environment.

    Here a blank value counts as unset. vllm-ascend 0.20.2 reads ``VLLM_ASCEND_APPLY_DSV4_PATCH``
    as a number, right behind the first import of a module of ours, and a blank value would end it.
    """
    for variable in VARIABLES:
        if os.environ.get(variable.name) == "":
            del os.environ[variable.name]
