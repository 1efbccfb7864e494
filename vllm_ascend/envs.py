# SPDX-License-Identifier: Apache-2.0
"""The project's environment variables: read here, once, into a frozen config.

Nothing else in the package looks at the environment. A value that cannot be used raises
``ValueError`` naming the variable, the value and what is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

DSV4_COMPRESSED_BLOCK_SIZES = (32, 64, 128)


def _flag(name: str, raw: str) -> bool:
    if raw not in ("0", "1"):
        raise ValueError(f"{name}={raw!r} is invalid: allowed are 0 and 1")
    return raw == "1"


def _non_negative_int(name: str, raw: str) -> int:
    if not raw.isascii() or not raw.isdigit():
        raise ValueError(f"{name}={raw!r} is invalid: allowed are whole numbers from 0 up")
    return int(raw)


def _retention(name: str, raw: str) -> int | str:
    if raw == "auto":
        return raw
    if not raw.isascii() or not raw.isdigit():
        raise ValueError(
            f"{name}={raw!r} is invalid: allowed are 'auto', 0, or a number of tokens that is a "
            "multiple of the prefix cache's alignment"
        )
    return int(raw)


def _compressed_block_size(name: str, raw: str) -> int:
    if raw not in {str(size) for size in DSV4_COMPRESSED_BLOCK_SIZES}:
        raise ValueError(f"{name}={raw!r} is invalid: allowed are 32, 64 and 128")
    return int(raw)


def _profile(name: str, raw: str) -> str:
    if raw not in ("stock", "best"):
        raise ValueError(f"{name}={raw!r} is invalid: allowed are 'stock' and 'best'")
    return raw


@dataclass(frozen=True)
class Variable:
    """One environment variable of the project.

    Attributes:
        name: The variable.
        field: The field of :class:`AscendConfig` that it sets; ``None`` while the feature
            behind it is not part of this release, in which case only ``default`` is accepted.
        default: The value in force when the variable is unset.
        parse: Turns ``(name, raw value)`` into the field's value or raises ``ValueError``.
        values: The allowed values, for people.
        effect: What it does, in one sentence, for people.
    """

    name: str
    field: str | None
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
        effect="Ascend's DeepSeek-V4 cache layout and coordinator.",
    ),
    Variable(
        name="VLLM_PREFIX_CACHE_RETENTION_INTERVAL",
        field="retention",
        default=None,
        parse=_retention,
        values="auto, 0, N",
        effect=(
            "Which sliding-window tails stay cached: 0 keeps the end of every prompt, N also "
            "every N tokens (a multiple of the alignment in force), auto is N = 32768; unset "
            "caches all of them, as vLLM does."
        ),
    ),
    Variable(
        name="VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE",
        field="dsv4_compressed_kv_block_size",
        default=None,
        parse=_compressed_block_size,
        values="32, 64, 128",
        effect=(
            "Rows per compressed block; window and state blocks and page padding scale with it. "
            "Default: --block-size if given, else 128."
        ),
    ),
    Variable(
        name="VLLM_ASCEND_DSV4_PARTIAL_HITS",
        field=None,
        default=False,
        parse=_flag,
        values="0",
        effect="Hits that end inside a compressed block (not in this release).",
    ),
    Variable(
        name="VLLM_ASCEND_DSV4_PARTIAL_MIN_HIT_TOKENS",
        field=None,
        default=0,
        parse=_non_negative_int,
        values="0",
        effect="Smallest partial gain worth a block copy (not in this release).",
    ),
    Variable(
        name="VLLM_ASCEND_DSV4_SPARSE_STATE",
        field=None,
        default=False,
        parse=_flag,
        values="0",
        effect="Compressor-state blocks only for rows that are read (not in this release).",
    ),
    Variable(
        name="VLLM_ASCEND_SPARE_TAILS",
        field=None,
        default=False,
        parse=_flag,
        values="0",
        effect="Unkept tails stay hittable while memory is idle (not in this release).",
    ),
    Variable(
        name="VLLM_ASCEND_PREFIX_CACHE_PROFILE",
        field=None,
        default="stock",
        parse=_profile,
        values="stock",
        effect="A named set of the switches above (not in this release).",
    ),
    Variable(
        name="VLLM_PIN_SWA_TOKENS",
        field=None,
        default=False,
        parse=_flag,
        values="0",
        effect="A pinned tier for window blocks just left (not in this release).",
    ),
    Variable(
        name="VLLM_PIN_MIN_DROP_SIZE",
        field=None,
        default=16,
        parse=_non_negative_int,
        values="16",
        effect="Fewest blocks dropped at once that are pinned (not in this release).",
    ),
)


@dataclass(frozen=True)
class AscendConfig:
    """Every switch of the project, as the environment set it.

    Attributes:
        apply_dsv4_patch: Ascend's DeepSeek-V4 layout and coordinator are on.
        retention: ``None`` (dense, as stock vLLM), ``"auto"``, or an interval in tokens.
        dsv4_compressed_kv_block_size: Rows per compressed block, ``None`` if left to
            ``--block-size``.
    """

    apply_dsv4_patch: bool = False
    retention: int | str | None = None
    dsv4_compressed_kv_block_size: int | None = None

    @property
    def splits_free_queue(self) -> bool:
        """Whether freed blocks without a hash go to the front of the free queue."""
        return self.retention is not None

    @property
    def is_stock(self) -> bool:
        """Whether nothing is switched on: vLLM must behave as if unpatched."""
        return self == AscendConfig()


def load_config(environ: Mapping[str, str] | None = None) -> AscendConfig:
    """Read and validate the project's variables.

    Args:
        environ: What to read; the process's environment by default. An empty value counts as
            unset, as in a manifest that leaves a variable blank.

    Returns:
        The frozen configuration; the same object as long as the values are the same.

    Raises:
        ValueError: A value is not allowed, or asks for a feature that this release lacks.
    """
    source = os.environ if environ is None else environ
    return _parse(tuple(source.get(variable.name, "") for variable in VARIABLES))


@lru_cache(maxsize=64)
def _parse(raw_values: tuple[str, ...]) -> AscendConfig:
    fields: dict[str, Any] = {}
    for variable, raw in zip(VARIABLES, raw_values, strict=True):
        if not raw:
            continue
        value = variable.parse(variable.name, raw)
        if variable.field is not None:
            fields[variable.field] = value
        elif value != variable.default:
            raise ValueError(
                f"{variable.name}={raw!r} is not available in this release: leave it unset"
            )
    return AscendConfig(**fields)


def child_environment(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child process in which only ``overrides`` switch us on.

    Starts from this process's environment, drops every variable of the project, fixes
    ``PYTHONHASHSEED`` (vLLM seeds its block hashes with it) and applies ``overrides``.
    """
    names = {variable.name for variable in VARIABLES}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["PYTHONHASHSEED"] = "0"
    environment.update(overrides)
    return environment


def register_with_vllm() -> None:
    """Tell vLLM that our variables exist, so that it does not warn about unknown ones.

    Idempotent. A name that vLLM itself already knows (a later release) keeps vLLM's reader.
    """
    import vllm.envs

    for variable in VARIABLES:
        vllm.envs.environment_variables.setdefault(
            variable.name, lambda name=variable.name: os.environ.get(name)
        )
