# SPDX-License-Identifier: Apache-2.0
"""How a KV cache group is announced to routers: which of its units a hit rests on."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

from vllm_ascend.core.events.kv_event_queue import OTHER, PREFIX, TAIL, AnnouncedGroup, HitRules
from vllm_ascend.core.layout.groups import Group

# In the words of vLLM 0.23.0's KVCacheSpecKind; subclasses before their bases.
_KINDS: tuple[tuple[type[KVCacheSpec], str], ...] = (
    (SlidingWindowMLASpec, "sliding_window_mla"),
    (MLAAttentionSpec, "mla_attention"),
    (FullAttentionSpec, "full_attention"),
    (ChunkedLocalAttentionSpec, "chunked_local_attention"),
    (SlidingWindowSpec, "sliding_window"),
    (MambaSpec, "mamba"),
)


def announced_groups(
    groups: Sequence[Group], specs: Sequence[KVCacheSpec], rules: HitRules
) -> list[AnnouncedGroup]:
    """Return how the events of every group are to be read.

    Args:
        specs: The groups' specs, unpacked.
    """
    return [_announced(group, spec, rules) for group, spec in zip(groups, specs, strict=True)]


def _announced(group: Group, spec: KVCacheSpec, rules: HitRules) -> AnnouncedGroup:
    # Far enough that no tail reaches over the first token.
    boundary = (group.window // rules.alignment + 2) * rules.alignment
    tail_tokens = 0 if group.is_downward_closed else boundary - group.tail_start(boundary)
    unit_tokens = group.block_tokens
    if group.is_downward_closed:
        unit_tokens = rules.hash_tokens
    return AnnouncedGroup(
        group_id=group.id,
        rule=_rule(group, spec),
        block_tokens=group.block_tokens,
        unit_tokens=unit_tokens,
        tail_tokens=tail_tokens,
        ends_inside=group.ends_inside,
        is_draft=group.is_eagle,
        kind=next((kind for base, kind in _KINDS if isinstance(spec, base)), "unknown"),
        window=getattr(spec, "sliding_window", None),
    )


def _rule(group: Group, spec: KVCacheSpec) -> str:
    if group.is_downward_closed:
        return PREFIX
    # How far a chunk reaches back depends on where in it a hit ends; no number says that.
    return OTHER if isinstance(spec, ChunkedLocalAttentionSpec) else TAIL
