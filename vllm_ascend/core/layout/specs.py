# SPDX-License-Identifier: Apache-2.0
"""What the managers and the coordinator need to know of a KV cache spec, in tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm

import torch
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from vllm_ascend.deployment import is_over_checkout


def unpack_uniform(spec: KVCacheSpec) -> KVCacheSpec:
    """Return one layer's spec of a :class:`UniformTypeKVCacheSpecs`, any other spec as it is.

    All layers of such a group need the same token slots, so any one stands for the group.
    """
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return next(iter(spec.kv_cache_specs.values()))
    return spec


def compress_ratio(spec: KVCacheSpec) -> int:
    """Return how many tokens one stored row stands for (1 without compression)."""
    return max(getattr(unpack_uniform(spec), "compress_ratio", 1) or 1, 1)


def tokens_per_block(spec: KVCacheSpec) -> int:
    """Return the tokens that one block covers.

    Right for both storage semantics: Ascend's specs count rows (``storage_block_size`` equals
    ``block_size``), vLLM's count tokens (``storage_block_size`` is ``block_size // ratio``).
    """
    spec = unpack_uniform(spec)
    if counts_rows(spec):
        return spec.block_size * compress_ratio(spec)
    return spec.storage_block_size * compress_ratio(spec)


def group_specs(kv_cache_config: KVCacheConfig) -> list[KVCacheSpec]:
    """Return the unpacked spec of every KV cache group, in group order."""
    return [unpack_uniform(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups]


def counts_rows(spec: KVCacheSpec) -> bool:
    """Whether ``block_size`` counts compressed rows (Ascend) although rows cover many tokens.

    Over a checkout of vllm-ascend it always does, also in a spec of vLLM's own class.
    """
    spec = unpack_uniform(spec)
    return compress_ratio(spec) > 1 and (
        spec.storage_block_size == spec.block_size or is_over_checkout()
    )


def is_compressed(spec: KVCacheSpec) -> bool:
    """Whether a group holds compressed rows that stay for the whole request."""
    spec = unpack_uniform(spec)
    return isinstance(spec, MLAAttentionSpec) and compress_ratio(spec) > 1


def is_downward_closed(spec: KVCacheSpec) -> bool:
    """Whether a hit at a boundary implies a hit at every shallower one."""
    return isinstance(unpack_uniform(spec), FullAttentionSpec)


def is_windowed(spec: KVCacheSpec) -> bool:
    """Whether retention decides which of the group's blocks are kept."""
    return isinstance(unpack_uniform(spec), SlidingWindowSpec)


def is_compressor_state(spec: KVCacheSpec) -> bool:
    """Whether a group holds DeepSeek-V4 compressor state.

    The running sums of the compressors are kept in fp32 whatever the model is. A model that is
    fp32 itself has such window pages as well; those say whose they are (``model_version``).
    """
    spec = unpack_uniform(spec)
    return (
        isinstance(spec, SlidingWindowMLASpec)
        and spec.dtype == torch.float32
        and spec.model_version is None
    )


def granule_tokens(specs: Sequence[KVCacheSpec]) -> int:
    """Return the finest unit in which hits can be measured, in tokens.

    Rows of a compressed group cannot be cut, and neither can blocks of any other group; a hit may
    end between any two rows of a compressed block.
    """
    return lcm(
        *(compress_ratio(spec) if is_compressed(spec) else tokens_per_block(spec) for spec in specs)
    )


TailStart = Callable[[int], int]
"""Boundary in tokens -> the first token whose row is read when a request resumes there."""


def tail_start(spec: KVCacheSpec, specs: Sequence[KVCacheSpec]) -> TailStart:
    """Return which rows of a windowed group are read to resume at a boundary.

    A sliding window reads ``window - 1`` tokens back. A compressor reads its open window, and one
    that overlaps the window before that too: at the end of a window the first kind reads nothing.
    A compressor's state says how far it looks back (``sliding_window``), not over how many windows;
    the ratios of the model's compressed groups tell. Where they leave a doubt the whole window is
    taken (stock vLLM shows its scheduler one layer of a group that holds several ratios).

    Args:
        spec: A windowed group's spec.
        specs: Those of all groups.
    """
    window = unpack_uniform(spec).sliding_window
    ratios = {compress_ratio(other) for other in specs if is_compressed(other)}
    fitting = [(ratio, window // ratio) for ratio in ratios if window in (ratio, 2 * ratio)]
    if not is_compressor_state(spec) or len(fitting) != 1:
        return lambda boundary: max(boundary - window + 1, 0)
    ratio, num_windows = fitting[0]
    return lambda boundary: max((boundary // ratio - num_windows + 1) * ratio, 0)


def kind_in_words(spec: KVCacheSpec) -> str:
    """Return what a group holds, for people."""
    if is_compressed(spec):
        return f"compressed {compress_ratio(spec)}:1"
    if is_compressor_state(spec):
        return f"state, window {spec.sliding_window}"
    if is_windowed(spec):
        return f"sliding window {spec.sliding_window:,}"
    return "full attention" if is_downward_closed(spec) else type(spec).__name__


def may_hold_draft_layers(spec: KVCacheSpec) -> bool:
    """Whether an EAGLE or MTP layer could live in the group: it attends to uncompressed tokens."""
    spec = unpack_uniform(spec)
    return (
        isinstance(spec, AttentionSpec)
        and compress_ratio(spec) == 1
        and not is_compressor_state(spec)
    )
