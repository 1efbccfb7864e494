# SPDX-License-Identifier: Apache-2.0
"""A KV cache group: its sizes, the tail that a hit needs of it, and whether drafts live in it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig, KVCacheSpec

from vllm_ascend.core.layout.specs import (
    TailStart,
    compress_ratio,
    group_specs,
    is_compressed,
    is_compressor_state,
    is_downward_closed,
    is_windowed,
    tail_start,
    tokens_per_block,
)
from vllm_ascend.core.retention.boundaries import align_down, tail_blocks


def group_suffix(group_id: int) -> bytes:
    """Return what turns a block's name into its key in the index, as vLLM does."""
    return group_id.to_bytes(4, "big", signed=False)


@dataclass(frozen=True)
class Group:
    """One KV cache group as a look-up sees it. Sizes in tokens."""

    id: int
    manager: SingleTypeKVCacheManager
    block_tokens: int
    is_downward_closed: bool
    is_retained: bool  # retention decides which tails are kept
    is_compressor_state: bool
    is_eagle: bool  # layers of a draft model may be in it
    ends_inside: bool  # a hit may end inside a block, which is then copied
    tail_start: TailStart  # of a group that forgets
    # Blocks of a tail, where it is the same at all boundaries but the first few.
    tail_length: int | None = None
    window: int = 0  # of a retained group

    @cached_property
    def suffix(self) -> bytes:
        """What turns a block's name into its key in the index."""
        return group_suffix(self.id)

    def tail(self, boundary: int) -> range:
        """Return the ordinals of the blocks that must be cached to resume at ``boundary``::

        tokens that are read  [tail_start(boundary), boundary)
        blocks of the tail    [tail_start(boundary) // block_tokens, boundary // block_tokens)
        """
        if self.tail_length is None:
            return tail_blocks(boundary, self.tail_start(boundary), self.block_tokens)
        end = boundary // self.block_tokens
        return range(max(end - self.tail_length, 0), end)


def describe_groups(
    specs: Sequence[KVCacheSpec],
    managers: Sequence[SingleTypeKVCacheManager],
    draft_groups: Set[int],
    *,
    alignment: int,
    ends_inside_blocks: bool,
    changes_caching: bool,
) -> list[Group]:
    """Return one description per group, in the order of the groups.

    Args:
        draft_groups: Groups that may hold layers of a draft model.
        alignment: Hits are multiples of this, in tokens.
        ends_inside_blocks: Whether hits may end inside blocks of compressed rows.
        changes_caching: Without it tails are what the managers say, as in stock vLLM.
    """
    groups = []
    for i, (manager, spec) in enumerate(zip(managers, specs, strict=True)):
        has_own_tails = changes_caching and is_windowed(spec)
        groups.append(
            Group(
                id=i,
                manager=manager,
                block_tokens=tokens_per_block(spec),
                is_downward_closed=is_downward_closed(spec),
                is_retained=is_windowed(spec),
                is_compressor_state=is_compressor_state(spec),
                is_eagle=i in draft_groups,
                ends_inside=ends_inside_blocks and hits_end_inside(spec, alignment),
                tail_start=(
                    tail_start(spec, specs) if has_own_tails else manager.get_num_skipped_tokens
                ),
                tail_length=tail_length(spec, specs, alignment) if has_own_tails else None,
                window=spec.sliding_window if has_own_tails else 0,
            )
        )
    return groups


def tail_length(spec: KVCacheSpec, specs: Sequence[KVCacheSpec], alignment: int) -> int:
    """Return the blocks of a windowed group's tail, at all boundaries but the first few::

        boundary ``b``      multiples of ``alignment`` that are greater than the window
        blocks of its tail  [tail_start(b) // block_tokens, b // block_tokens)

    Args:
        specs: Those of all groups.
    """
    # Far enough that no tail reaches over the first token.
    boundary = align_down(spec.sliding_window, alignment) + alignment
    start = tail_start(spec, specs)(boundary)
    return len(tail_blocks(boundary, start, tokens_per_block(spec)))


def hits_end_inside(spec: KVCacheSpec, alignment: int) -> bool:
    """Whether a multiple of ``alignment`` tokens may lie inside a block of compressed rows."""
    return is_compressed(spec) and tokens_per_block(spec) > alignment


def find_draft_groups(
    kv_cache_config: KVCacheConfig, layer_names: Sequence[str] | None, *, use_eagle: bool
) -> set[int]:
    """Return the groups that hold layers of a draft model, or could.

    Args:
        layer_names: The draft model's layers, if they are known.

    Raises:
        ValueError: A layer is in no group.
    """
    groups = kv_cache_config.kv_cache_groups
    flagged = {i for i, group in enumerate(groups) if group.is_eagle_group}
    if not use_eagle:
        return flagged
    if layer_names:
        by_layer = {layer: i for i, group in enumerate(groups) for layer in group.layer_names}
        unknown = sorted(set(layer_names) - set(by_layer))
        if unknown:
            raise ValueError(f"draft layers {unknown} are in no KV cache group")
        return {by_layer[layer] for layer in layer_names}
    specs = group_specs(kv_cache_config)
    # Draft layers attend to uncompressed tokens.
    attention = {i for i, spec in enumerate(specs) if isinstance(spec, AttentionSpec)}
    rows = {i for i in attention if compress_ratio(specs[i]) > 1 or is_compressor_state(specs[i])}
    return flagged or attention - rows or set(range(len(groups)))
