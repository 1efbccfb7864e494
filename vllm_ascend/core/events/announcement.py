# SPDX-License-Identifier: Apache-2.0
"""Describes a KV cache group to routers: which of its units a hit needs, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

from vllm_ascend.core.layout.groups import Group
from vllm_ascend.kv_events.layout import EngineRules

PREFIX, TAIL, OTHER = "prefix", "tail", "other"

# In the words of vLLM 0.23.0's KVCacheSpecKind; subclasses before their bases.
_KINDS: tuple[tuple[type[KVCacheSpec], str], ...] = (
    (SlidingWindowMLASpec, "sliding_window_mla"),
    (MLAAttentionSpec, "mla_attention"),
    (FullAttentionSpec, "full_attention"),
    (ChunkedLocalAttentionSpec, "chunked_local_attention"),
    (SlidingWindowSpec, "sliding_window"),
    (MambaSpec, "mamba"),
)


@dataclass(frozen=True)
class AnnouncedGroup:
    """How one KV cache group appears in the events. Sizes in tokens."""

    group_id: int
    # Which units a hit of b tokens needs. PREFIX: all of [0, b); TAIL: those with a token of
    # [b - tail_tokens, b); OTHER: no number says which.
    rule: str
    block_tokens: int
    unit_tokens: int  # per announced name: a granule or a block
    tail_tokens: int
    ends_inside: bool  # hits may end inside a block
    is_draft: bool  # a block counts only together with the granule behind it
    kind: str  # vLLM's name of the spec's kind
    window: int | None  # the spec's, if it has one


def announced_groups(
    groups: Sequence[Group], specs: Sequence[KVCacheSpec], rules: EngineRules
) -> list[AnnouncedGroup]:
    """Return how the events of every group, whose unpacked specs are given, are to be read."""
    announced = []
    for group, spec in zip(groups, specs, strict=True):
        rule, unit_tokens, tail_tokens = PREFIX, rules.hash_tokens, 0
        if not group.is_downward_closed:
            # How far a chunk reaches back depends on where in it a hit ends.
            rule = OTHER if isinstance(spec, ChunkedLocalAttentionSpec) else TAIL
            unit_tokens = group.block_tokens
            # Far enough that no tail reaches over the first token.
            boundary = (group.window // rules.alignment + 2) * rules.alignment
            tail_tokens = boundary - group.tail_start(boundary)
        announced.append(
            AnnouncedGroup(
                group_id=group.id,
                rule=rule,
                block_tokens=group.block_tokens,
                unit_tokens=unit_tokens,
                tail_tokens=tail_tokens,
                ends_inside=group.ends_inside,
                is_draft=group.is_eagle,
                kind=next((kind for base, kind in _KINDS if isinstance(spec, base)), "unknown"),
                window=getattr(spec, "sliding_window", None),
            )
        )
    return announced
