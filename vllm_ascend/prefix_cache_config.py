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
    if raw == "auto":
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
    if raw not in ("lru", "learned"):
        raise ValueError(f"{name}={raw!r} is invalid: allowed are 'lru' and 'learned'")
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
        field="partial_hits",
        default=False,
        parse=_flag,
        values="0, 1",
        effect="Hits end at every granule (128 tokens), inside a compressed block as well.",
    ),
    Variable(
        name="VLLM_ASCEND_DSV4_PARTIAL_MIN_HIT_TOKENS",
        field="partial_min_hit_tokens",
        default=0,
        parse=_non_negative_int,
        values="N",
        effect=(
            "Tokens that a partial hit must gain over the last hit that ends with whole blocks; "
            "a smaller gain is not worth a block copy."
        ),
    ),
    Variable(
        name="VLLM_ASCEND_DSV4_SPARSE_STATE",
        field="sparse_state",
        default=False,
        parse=_flag,
        values="0, 1",
        effect=(
            "Compressor state holds blocks only for rows that will be read: of a prefill chunk its "
            "end, of a running request its open windows."
        ),
    ),
    Variable(
        name="VLLM_ASCEND_SPARE_TAILS",
        field="spare_tails",
        default=False,
        parse=_flag,
        values="0, 1",
        effect=(
            "Tails at boundaries that nothing asks to keep stay hittable until their memory is "
            "needed."
        ),
    ),
    Variable(
        name="VLLM_ASCEND_PROTECT_RETURNING",
        field="protect_returning",
        default=False,
        parse=_flag,
        values="0, 1",
        effect=(
            "Prompts of which three quarters have come before are given up after all others, as "
            "long as they fill no more than half of the free memory. Where the order is learned, "
            "that is so from the start, and no order without it is ever in force."
        ),
    ),
    Variable(
        name="VLLM_ASCEND_EVICTION",
        field="eviction",
        default="lru",
        parse=_eviction,
        values="lru, learned",
        effect=(
            "Which kept block is given up first: the least recently used one, or the one least "
            "likely to be used again, by what was learned from the traffic so far. As long as all "
            "orders hit the same, learned protects returning prompts; where a simpler order hits "
            "more, that one is in force."
        ),
    ),
    Variable(
        name="VLLM_ASCEND_PREFIX_CACHE_PROFILE",
        field="profile",
        default="stock",
        parse=_profile,
        values="stock, best",
        effect=(
            "best: retention auto, partial hits, sparse state, spare tails and the learned order "
            "of eviction, each unless its own variable says otherwise."
        ),
    ),
    Variable(
        name="VLLM_PIN_SWA_TOKENS",
        field="pin_swa_tokens",
        default=False,
        parse=_flag,
        values="0, 1",
        effect=(
            "The windows at which prefill chunks end are given up after everything else, oldest "
            "first; all other tails stay hittable until their memory is needed."
        ),
    ),
    Variable(
        name="VLLM_PIN_MIN_DROP_SIZE",
        field="pin_min_drop_size",
        default=16,
        parse=_non_negative_int,
        values="N",
        effect="Blocks that every window must drop at once for the one just left to be pinned.",
    ),
)


# What the profile `best` switches on, where the variable itself is unset.
_BEST_PROFILE: dict[str, Any] = {
    "retention": "auto",
    "partial_hits": True,
    "sparse_state": True,
    "spare_tails": True,
    "eviction": "learned",
}


@dataclass(frozen=True)
class PrefixCacheConfig:
    """Every switch of the project, as the environment set it.

    Attributes:
        apply_dsv4_patch: Ascend's DeepSeek-V4 layout and coordinator are on.
        retention: ``None`` (dense, as stock vLLM), ``"auto"``, or an interval in tokens.
        dsv4_compressed_kv_block_size: Rows per compressed block, ``None`` if left to
            ``--block-size``.
        partial_hits: Hits may end inside a compressed block.
        partial_min_hit_tokens: The least gain of such a hit, in tokens.
        sparse_state: Compressor state holds blocks only for rows that will be read.
        spare_tails: Tails at boundaries not kept stay hittable while their memory is idle.
        protect_returning: Prompts that have come before are given up after all others.
        eviction: Which kept block is given up first.
        pin_swa_tokens: Windows just left in the middle of a prompt are given up last.
        pin_min_drop_size: Blocks that such a move must drop at once, in every windowed group.
        profile: The profile that the switches above were completed from.
        retention_from_profile: Nobody asked for retention but the profile: where a model has
            nothing to retain, that is no mistake.
    """

    apply_dsv4_patch: bool = False
    retention: int | str | None = None
    dsv4_compressed_kv_block_size: int | None = None
    partial_hits: bool = False
    partial_min_hit_tokens: int = 0
    sparse_state: bool = False
    spare_tails: bool = False
    protect_returning: bool = False
    pin_swa_tokens: bool = False
    pin_min_drop_size: int = 16
    eviction: str = "lru"
    profile: str = "stock"
    retention_from_profile: bool = False

    @property
    def changes_caching(self) -> bool:
        """Whether any switch changes what is cached, and so which block is given up first."""
        return (
            self.retention is not None
            or self.partial_hits
            or self.sparse_state
            or self.spare_tails
            or self.protect_returning
            or self.eviction != "lru"
            or self.pin_swa_tokens
        )

    @property
    def is_stock(self) -> bool:
        """Whether nothing is switched on: vLLM must behave as if unpatched."""
        return self == PrefixCacheConfig()


def load_config(environ: Mapping[str, str] | None = None) -> PrefixCacheConfig:
    """Read and validate the project's variables.

    Args:
        environ: What to read; the process's environment by default. An empty value counts as
            unset, as in a manifest that leaves a variable blank.

    Returns:
        The frozen configuration; the same object as long as the values are the same.

    Raises:
        ValueError: A value is not allowed.
    """
    source = os.environ if environ is None else environ
    return _parse(tuple(source.get(variable.name, "") for variable in VARIABLES))


@lru_cache(maxsize=64)
def _parse(raw_values: tuple[str, ...]) -> PrefixCacheConfig:
    fields: dict[str, Any] = {}
    for variable, raw in zip(VARIABLES, raw_values, strict=True):
        if raw:
            fields[variable.field] = variable.parse(variable.name, raw)
    if fields.get("profile") == "best":
        fields["retention_from_profile"] = "retention" not in fields
        fields = {**_BEST_PROFILE, **fields}
    return PrefixCacheConfig(**fields)


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


def become_child(overrides: Mapping[str, str]) -> None:
    """Give this process, a fork, the environment that :func:`child_environment` describes."""
    environment = child_environment(overrides)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def process_environment() -> dict[str, str]:
    """Return a copy of this process's environment, to be judged; it configures nothing."""
    return dict(os.environ)


def register_with_vllm() -> None:
    """Tell vLLM that our variables exist, so that it does not warn about unknown ones.

    Idempotent. A name that vLLM itself already knows (a later release) keeps vLLM's reader, which
    reads nothing where the value is one that only we know (``auto``), or blank.
    """
    from vllm.envs import environment_variables

    for variable in VARIABLES:
        reader = environment_variables.get(variable.name)
        if not isinstance(reader, _Reader):
            environment_variables[variable.name] = _Reader(variable.name, reader)


@dataclass(frozen=True)
class _Reader:
    """Reads a variable of ours for vLLM, by vLLM's own reader if it has one."""

    name: str
    vllms: Callable[[], Any] | None

    def __call__(self) -> Any:
        if self.vllms is None:
            return os.environ.get(self.name)
        try:
            return self.vllms()
        except ValueError:  # what nobody knows has been refused by load_config()
            return None
