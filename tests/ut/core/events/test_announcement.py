# SPDX-License-Identifier: Apache-2.0
"""What routers are told of the groups of real layouts."""

from __future__ import annotations

import torch
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec

from tests.ut.core.real_groups import full, make_groups, window
from vllm_ascend.core.events.announcement import (
    OTHER,
    PREFIX,
    TAIL,
    AnnouncedGroup,
    announced_groups,
)
from vllm_ascend.core.layout.dsv4_specs import ascend_specs
from vllm_ascend.kv_events.layout import EngineRules


def announce(*specs, alignment: int, hash_tokens: int, **kwargs) -> list[AnnouncedGroup]:
    rules = EngineRules(len(specs), alignment, hash_tokens)
    return announced_groups(make_groups(*specs, alignment=alignment, **kwargs), specs, rules)


def test_deepseek_v4_where_hits_end_at_granules():
    kinds = ascend_specs(128)
    specs = (kinds.window, *kinds.mla.values(), *kinds.state.values())
    told = announce(*specs, alignment=128, hash_tokens=128, ends_inside_blocks=True)
    assert [(g.rule, g.block_tokens, g.unit_tokens, g.tail_tokens) for g in told] == [
        (TAIL, 128, 128, 127),
        (PREFIX, 512, 128, 0),
        (PREFIX, 16_384, 128, 0),
        (TAIL, 8, 8, 4),
        (TAIL, 32, 32, 0),
    ]
    assert [g.ends_inside for g in told] == [False, True, True, False, False]
    kind = ["sliding_window_mla", "mla_attention", "mla_attention", *["sliding_window_mla"] * 2]
    assert [g.kind for g in told] == kind
    assert [g.window for g in told] == [128, None, None, 8, 128]


def test_an_ordinary_hybrid_with_drafts():
    told = announce(full(4), window(8, 24), alignment=8, hash_tokens=8, draft_groups={1})
    assert told == [
        AnnouncedGroup(0, PREFIX, 4, 8, 0, False, False, "full_attention", None),
        AnnouncedGroup(1, TAIL, 8, 8, 23, False, True, "sliding_window", 24),
    ]


def test_no_number_says_how_far_a_chunk_reaches_back():
    chunk = ChunkedLocalAttentionSpec(
        block_size=4,
        num_kv_heads=1,
        head_size=1,
        dtype=torch.bfloat16,
        attention_chunk_size=16,
    )
    _, told = announce(full(4), chunk, alignment=4, hash_tokens=4)
    assert (told.rule, told.unit_tokens, told.kind) == (OTHER, 4, "chunked_local_attention")
