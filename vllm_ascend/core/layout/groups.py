# SPDX-License-Identifier: Apache-2.0
"""A KV cache group: its sizes, the tail that a hit needs of it, and whether drafts live in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig, KVCacheSpec

from vllm_ascend.core.layout.specs import (
    ReadSpan,
    TailStart,
    compress_ratio,
    group_specs,
    is_compressed,
    is_compressor_state,
    read_span,
    tokens_per_block,
)
from vllm_ascend.core.policy.boundaries import (
    align_down,
    contiguous_blocks_for_hit,
    tail_blocks,
)
from vllm_ascend.core.policy.tail_blocks import tail_ordinals
from vllm_ascend.core.policy.units import GroupId

Blocks = tuple[Sequence[KVCacheBlock], ...]
"""A hit as a look-up returns it: per group, the blocks from the first token on."""


def group_suffix(group_id: GroupId) -> bytes:
    """Return what turns a block's name into its key in the index, as vLLM does."""
    return group_id.to_bytes(4, "big", signed=False)


@dataclass(frozen=True)
class Group:
    """One KV cache group as a look-up sees it. Sizes in tokens."""

    id: GroupId
    manager: SingleTypeKVCacheManager
    block_tokens: int
    is_downward_closed: bool
    is_retained: bool  # retention decides which tails are kept
    # Compressor state, and what carries it: a step reads it before it writes anything.
    is_read_first: bool
    is_eagle: bool  # layers of a draft model may be in it
    ends_inside: bool  # a hit may end inside a block, which is then copied
    tail_start: TailStart  # of a group that forgets
    # Blocks of a tail, where it is the same at all boundaries but the first few.
    tail_length: int | None = None
    window: int = 0  # of a retained group
    # What a request of a retained group holds as it goes on.
    held: ReadSpan | None = None

    @cached_property
    def suffix(self) -> bytes:
        """The bytes that follow a block's name in its key in the index."""
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

    def tails(self, boundaries: Sequence[int]) -> Sequence[int]:
        """Ordinals of the blocks of the tails of ascending boundaries, each once."""
        return tail_ordinals(
            boundaries, self.tail, block_tokens=self.block_tokens, tail_length=self.tail_length
        )


@dataclass(frozen=True)
class Groups:
    """All groups of a model, in the order of their ids, and those of each kind."""

    all: tuple[Group, ...]

    @cached_property
    def prefix(self) -> tuple[Group, ...]:
        """Downward closed: a hit needs all of their rows from the first token on."""
        return tuple(group for group in self.all if group.is_downward_closed)

    @cached_property
    def windowed(self) -> tuple[Group, ...]:
        """Those of which a hit needs a tail."""
        return tuple(group for group in self.all if not group.is_downward_closed)

    @cached_property
    def retained(self) -> tuple[Group, ...]:
        """Those of them whose tails retention decides about."""
        return tuple(group for group in self.all if group.is_retained)

    def tokens_for_a_tail(self, boundary: int) -> int:
        """Return how many tokens' rows take as many blocks as a boundary's tail; 0 if none do."""
        if not self.prefix:
            return 0
        num_blocks = sum(len(group.tail(boundary)) for group in self.retained)
        return int(num_blocks / sum(1 / group.block_tokens for group in self.prefix))


def tail_spec(spec: KVCacheSpec, specs: Sequence[KVCacheSpec], alignment: int) -> KVCacheSpec:
    """Return a windowed group's spec with the window that is read to resume at a boundary.

    It differs from the group's own window where compressor state is read to its open window only.
    ``specs`` are those of all groups.
    """
    # Far enough that no tail reaches over the first token.
    boundary = align_down(spec.sliding_window, alignment) + alignment
    # +1: a window counts the token to be computed, too.
    return replace(spec, sliding_window=boundary - read_span(spec, specs).start(boundary) + 1)


def tail_length(read: KVCacheSpec) -> int:
    """Return the blocks of a tail, given its :func:`tail_spec`, at all but the first boundaries."""
    return contiguous_blocks_for_hit(read.sliding_window, tokens_per_block(read), peek_block=False)


def hits_end_inside(spec: KVCacheSpec, alignment: int) -> bool:
    """Whether a multiple of ``alignment`` tokens may lie inside a block of compressed rows."""
    return is_compressed(spec) and tokens_per_block(spec) > alignment


def find_draft_groups(
    kv_cache_config: KVCacheConfig, layer_names: Sequence[str] | None, *, use_eagle: bool
) -> set[int]:
    """Return the groups that hold layers of a draft model, given by name if known, or could.

    Raises:
        ValueError: A layer is in no group.
    """
    groups = kv_cache_config.kv_cache_groups
    flagged = {i for i, group in enumerate(groups) if group.is_eagle_group}
    if not use_eagle:
        return flagged
    if layer_names:
        by_layer = {layer: i for i, group in enumerate(groups) for layer in group.layer_names}
        if unknown := sorted(set(layer_names) - set(by_layer)):
            raise ValueError(f"draft layers {unknown} are in no KV cache group")
        return {by_layer[layer] for layer in layer_names}
    specs = group_specs(kv_cache_config)
    # Draft layers attend to uncompressed tokens.
    attention = {i for i, spec in enumerate(specs) if isinstance(spec, AttentionSpec)}
    rows = {i for i in attention if compress_ratio(specs[i]) > 1 or is_compressor_state(specs[i])}
    return flagged or attention - rows or set(range(len(groups)))
