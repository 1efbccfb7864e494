# SPDX-License-Identifier: Apache-2.0
"""Properties of KV cache specs that managers and coordinator need, in tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import lcm

import torch
from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from vllm_ascend.deployment import is_over_checkout


@dataclass(frozen=True, kw_only=True)
class AscendMLATokenSpec(MLAAttentionSpec):
    """Ascend's spec of compressed rows where ``block_size`` counts tokens, as in vLLM's own.

    The class says whose layout it is. Source: vllm-ascend 0.30.0rc2
    ``DSAAttention.get_kv_cache_spec``.
    """


def unpack_uniform(spec: KVCacheSpec) -> KVCacheSpec:
    """Return one layer's spec of a group that packs several, any other spec as it is.

    All layers of such a group need the same token slots, so any one stands for the group.
    """
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return next(iter(spec.kv_cache_specs.values()))
    return spec


def group_specs(kv_cache_config: KVCacheConfig) -> list[KVCacheSpec]:
    """Return the unpacked spec of every KV cache group, in group order."""
    return [unpack_uniform(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups]


def compress_ratio(spec: KVCacheSpec) -> int:
    """Return how many tokens one stored row stands for (1 without compression)."""
    spec = unpack_uniform(spec)
    # Later releases of vLLM name the field anew. Not every kind of spec has either; a fraction
    # says that a token has several rows.
    ratio = getattr(spec, "compress_ratio", None) or getattr(spec, "tokens_per_state", None) or 1
    return max(int(ratio), 1)


def counts_rows(spec: KVCacheSpec) -> bool:
    """Whether ``block_size`` counts compressed rows (Ascend), not the tokens they stand for (vLLM).

    Over a checkout of vllm-ascend it always does, also in a spec of vLLM's own class; in releases
    of which all specs count tokens it never does.
    """
    spec = unpack_uniform(spec)
    # Specs of later releases, which have no such field, all count tokens.
    return getattr(spec, "compress_ratio", 1) > 1 and (
        spec.storage_block_size == spec.block_size or is_over_checkout()
    )


def tokens_per_block(spec: KVCacheSpec) -> int:
    """Return the tokens that one block covers, whatever its spec's ``block_size`` counts."""
    return rows_per_block(spec) * compress_ratio(spec)


def rows_per_block(spec: KVCacheSpec) -> int:
    """Return the rows that one block stores, whatever its spec's ``block_size`` counts."""
    spec = unpack_uniform(spec)
    return spec.block_size if counts_rows(spec) else spec.block_size // compress_ratio(spec)


def is_compressed(spec: KVCacheSpec) -> bool:
    """Whether a group holds compressed rows that stay for the whole request."""
    return isinstance(unpack_uniform(spec), MLAAttentionSpec) and compress_ratio(spec) > 1


def is_downward_closed(spec: KVCacheSpec) -> bool:
    """Whether a hit at a boundary implies a hit at every shallower one."""
    return isinstance(unpack_uniform(spec), FullAttentionSpec)


def is_windowed(spec: KVCacheSpec) -> bool:
    """Whether retention decides which of the group's blocks are kept."""
    return isinstance(unpack_uniform(spec), SlidingWindowSpec)


def is_compressor_state(spec: KVCacheSpec) -> bool:
    """Whether a group holds the compressors' running sums, which are fp32 whatever the model is.

    The windows of an fp32 model are fp32 as well, but have a ``model_version``.
    """
    spec = unpack_uniform(spec)
    return (
        isinstance(spec, SlidingWindowMLASpec)
        and spec.dtype == torch.float32
        and spec.model_version is None
    )


def granule_tokens(specs: Sequence[KVCacheSpec]) -> int:
    """Return the granule, the finest unit in which hits can be measured, in tokens.

    A hit may end between any two rows of a compressed block, but with a whole block of any other
    group.
    """
    return lcm(
        *(compress_ratio(spec) if is_compressed(spec) else tokens_per_block(spec) for spec in specs)
    )


TailStart = Callable[[int], int]
"""Boundary in tokens -> the first token whose row is read when a request resumes there."""


@dataclass(frozen=True)
class ReadSpan:
    """The tokens of a windowed group whose rows are read to resume behind ``b`` tokens::

    [b // step * step - behind, b)
    """

    behind: int
    step: int = 1

    def start(self, num_tokens: int) -> int:
        """Return the first token whose row is read behind so many."""
        return max(num_tokens // self.step * self.step - self.behind, 0)

    def end_of_use(self, token: int) -> int:
        """Return behind how many tokens nobody reads a token's row any more."""
        return cdiv(token + 1 + self.behind, self.step) * self.step


def window_span(spec: KVCacheSpec) -> ReadSpan:
    """Return what a windowed group's spec says is read, by vLLM's rule."""
    # A window counts the token to be computed, too.
    return ReadSpan(unpack_uniform(spec).sliding_window - 1)


def read_span(spec: KVCacheSpec, specs: Sequence[KVCacheSpec]) -> ReadSpan:
    """Return which tokens' rows of a windowed group are read to go on behind ``b`` tokens::

        sliding window            [b - window + 1, b)
        compressor of ratio r     [b // r * r, b), its open window
        overlapping compressor    [b // r * r - r, b), that and the one before

    A state's spec has only the tokens of its window, which are ``r`` or ``2 * r``; the ratios of
    the compressed groups tell which. Where they leave a doubt it is taken for a sliding window
    (stock vLLM shows its scheduler one layer of a group that holds several ratios).

    Args:
        spec: A windowed group's spec.
        specs: Those of all groups.
    """
    window = unpack_uniform(spec).sliding_window
    ratios = {compress_ratio(other) for other in specs if is_compressed(other)}
    fitting = [ratio for ratio in ratios if window in (ratio, 2 * ratio)]
    if not is_compressor_state(spec) or len(fitting) != 1:
        return window_span(spec)
    (ratio,) = fitting
    return ReadSpan(window - ratio, step=ratio)


def carries_ring(spec: KVCacheSpec) -> bool:
    """Whether a window's blocks carry what rings of compressor state hold (``ring_tails``)."""
    return getattr(unpack_uniform(spec), "carries_ring", False)


def has_rings(specs: Iterable[KVCacheSpec]) -> bool:
    """Whether compressor state is in rings, of which some group's tails carry snapshots."""
    return any(map(carries_ring, specs))


def kind_in_words(spec: KVCacheSpec) -> str:
    """Return what a group holds, for people."""
    if is_compressed(spec):
        return f"compressed {compress_ratio(spec)}:1"
    if is_compressor_state(spec):
        return f"state, window {spec.sliding_window}"
    if is_windowed(spec):
        return f"sliding window {spec.sliding_window:,}"
    return "full attention" if is_downward_closed(spec) else type(spec).__name__
