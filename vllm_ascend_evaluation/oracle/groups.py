# SPDX-License-Identifier: Apache-2.0
"""From a KV cache spec to the rules by which the oracle treats its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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


class Drafts(Enum):
    """What a row of the draft model's layers depends on."""

    NEXT_TOKEN = "EAGLE and MTP: the tokens up to the one behind its own"
    OWN_TOKEN = "DSpark: the tokens up to its own"


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
        drafts: of the draft model's layers in this group, if there are any.
        num_speculative_blocks: Mamba's scratch blocks for the states of drafts.
    """

    kind: Kind
    rows_per_block: int
    ratio: int = 1
    window: int = 0
    overlapping: bool = False
    drafts: Drafts | None = None
    num_speculative_blocks: int = 0

    @property
    def draft_ahead(self) -> int:
        """Tokens behind its own that a draft row depends on."""
        return int(self.drafts is Drafts.NEXT_TOKEN)

    @property
    def tokens_per_block(self) -> int:
        """Tokens that a whole block covers."""
        if self.kind is Kind.STATE:
            return self.rows_per_block
        return self.rows_per_block * self.ratio


def rules_of(spec: KVCacheSpec, *, drafts: Drafts | None = None) -> GroupRules:
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
        return GroupRules(Kind.SLIDING, rows, window=spec.sliding_window, drafts=drafts)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return GroupRules(Kind.CHUNKED, rows, window=spec.attention_chunk_size)
    if isinstance(spec, FullAttentionSpec):
        ratio = compress_ratio(spec)
        return GroupRules(Kind.FULL, rows, ratio, drafts=drafts)
    raise ValueError(f"the content oracle has no model of {type(spec).__name__}")


def rules_of_groups(
    groups: Sequence[KVCacheGroupSpec], *, drafts: Drafts | None
) -> list[GroupRules]:
    """The rules of every group.

    Args:
        drafts: of the draft model's layers, if there is one. EAGLE's and MTP's are taken to be in
            the groups flagged `is_eagle_group`; with none flagged, in every group that could
            hold them: windowed ones that are no compressor state, and uncompressed full ones.
            DSpark's are in all of these that have a window.
    """
    flagged = {i for i, group in enumerate(groups) if group.is_eagle_group}
    kinds = (Kind.SLIDING,) if drafts is Drafts.OWN_TOKEN else (Kind.FULL, Kind.SLIDING)
    rules = []
    for group_id, group in enumerate(groups):
        rule = rules_of(group.kv_cache_spec)
        candidate = rule.ratio == 1 and rule.kind in kinds
        is_chosen = drafts is Drafts.OWN_TOKEN or not flagged or group_id in flagged
        if candidate and is_chosen:
            rule = replace(rule, drafts=drafts)
        rules.append(rule)
    return rules
