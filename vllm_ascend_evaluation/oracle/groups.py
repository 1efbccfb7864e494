# SPDX-License-Identifier: Apache-2.0
"""From a KV cache spec to the rules by which the oracle treats its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from vllm_ascend.core.layout.specs import compress_ratio, rows_per_block

# The overlapping compressor keeps two windows of 4 tokens; every other compressor keeps one.
_OVERLAPPING_WINDOW = 8


class Kind(Enum):
    """How the layers of a group use their rows."""

    FULL = "full"
    SLIDING = "sliding window"
    CHUNKED = "chunked local"
    STATE = "compressor state"
    MAMBA = "mamba"


@dataclass(frozen=True)
class GroupRules:
    """What the oracle knows about one KV cache group.

    Attributes:
        rows_per_block: rows stored in one block.
        ratio: tokens per row (for a compressor state: per window; its rows are tokens).
        window: sliding window or chunk in tokens; 0 where there is none.
        overlapping: of a compressor state, whether windows overlap.
        has_draft_rows: whether layers of the draft model live in this group.
        num_speculative_blocks: Mamba's scratch blocks for the states of drafts.
    """

    kind: Kind
    rows_per_block: int
    ratio: int = 1
    window: int = 0
    overlapping: bool = False
    has_draft_rows: bool = False
    num_speculative_blocks: int = 0

    @property
    def tokens_per_block(self) -> int:
        """Tokens that a whole block covers."""
        if self.kind is Kind.STATE:
            return self.rows_per_block
        return self.rows_per_block * self.ratio


def rules_of(spec: KVCacheSpec, *, has_draft_rows: bool = False) -> GroupRules:
    """The rules of a group with this spec.

    Raises:
        ValueError: for a kind of cache that the oracle has no model of.
    """
    if isinstance(spec, UniformTypeKVCacheSpecs):
        spec = next(iter(spec.kv_cache_specs.values()))
    rows = rows_per_block(spec)
    if isinstance(spec, MambaSpec):
        # One state per block, whatever number of tokens it sums up.
        return GroupRules(
            Kind.MAMBA,
            1,
            ratio=spec.block_size,
            num_speculative_blocks=spec.num_speculative_blocks,
        )
    if isinstance(spec, SlidingWindowMLASpec) and spec.dtype == torch.float32:
        overlapping = spec.sliding_window == _OVERLAPPING_WINDOW
        ratio = spec.sliding_window // 2 if overlapping else spec.sliding_window
        return GroupRules(Kind.STATE, rows, ratio, spec.sliding_window, overlapping)
    if isinstance(spec, SlidingWindowSpec):
        return GroupRules(
            Kind.SLIDING, rows, window=spec.sliding_window, has_draft_rows=has_draft_rows
        )
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return GroupRules(Kind.CHUNKED, rows, window=spec.attention_chunk_size)
    if isinstance(spec, FullAttentionSpec):
        ratio = compress_ratio(spec)
        return GroupRules(Kind.FULL, rows, ratio, has_draft_rows=has_draft_rows)
    raise ValueError(f"the content oracle has no model of {type(spec).__name__}")


def rules_of_groups(groups: Sequence[KVCacheGroupSpec], *, drafting: bool) -> list[GroupRules]:
    """The rules of every group.

    Args:
        drafting: whether an EAGLE or MTP layer writes rows of its own. They are taken to be in
            the groups flagged `is_eagle_group`; with none flagged, in every group that could
            hold them: windowed ones that are no compressor state, and uncompressed full ones.
    """
    flagged = {i for i, group in enumerate(groups) if group.is_eagle_group}
    rules = []
    for group_id, group in enumerate(groups):
        rule = rules_of(group.kv_cache_spec, has_draft_rows=False)
        candidate = rule.ratio == 1 and rule.kind in (Kind.FULL, Kind.SLIDING)
        if drafting and candidate and (not flagged or group_id in flagged):
            rule = rules_of(group.kv_cache_spec, has_draft_rows=True)
        rules.append(rule)
    return rules
