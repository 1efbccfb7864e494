# SPDX-License-Identifier: Apache-2.0
"""Every kind of KV cache spec gets the rules of its kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend_evaluation.oracle.groups import Drafts, GroupRules, Kind, rules_of, rules_of_groups

SHAPE = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.bfloat16}
FULL = FullAttentionSpec(block_size=16, **SHAPE)
SLIDING = SlidingWindowSpec(block_size=16, sliding_window=9, **SHAPE)
C4 = MLAAttentionSpec(block_size=256, compress_ratio=4, **SHAPE)


def state(block_size: int, window: int) -> KVCacheSpec:
    return SlidingWindowMLASpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=8,
        dtype=torch.float32,
        sliding_window=window,
    )


@pytest.mark.parametrize(
    ("spec", "rules", "tokens_per_block"),
    [
        (FULL, GroupRules(Kind.FULL, 16), 16),
        (C4, GroupRules(Kind.FULL, 64, 4), 256),
        (SLIDING, GroupRules(Kind.SLIDING, 16, window=9), 16),
        (state(4, 8), GroupRules(Kind.STATE, 4, 4, 8, True), 4),
        (state(8, 128), GroupRules(Kind.STATE, 8, 128, 128, False), 8),
        (
            ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=64, **SHAPE),
            GroupRules(Kind.CHUNKED, 16, window=64),
            16,
        ),
        (
            MambaSpec(
                block_size=32,
                shapes=((2,),),
                dtypes=(torch.float32,),
                mamba_cache_mode="align",
                num_speculative_blocks=2,
            ),
            GroupRules(Kind.MAMBA, 1, 32, num_speculative_blocks=2),
            32,
        ),
    ],
)
def test_rules(spec: KVCacheSpec, rules: GroupRules, tokens_per_block: int) -> None:
    assert rules_of(spec) == rules
    assert rules_of(spec).tokens_per_block == tokens_per_block


def test_one_layer_stands_for_a_uniform_group() -> None:
    packed = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": SLIDING, "b": SLIDING})
    assert rules_of(packed) == rules_of(SLIDING)


def test_ascend_counts_rows() -> None:
    """128 rows of a C128 block cover 16384 tokens."""
    specs = dsv4_flash_a3(128, compress_ratios=(128,)).specs
    assert rules_of(specs["model.layers.0.attn.mla"]).tokens_per_block == 16384


def test_an_unknown_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="CrossAttentionSpec"):
        rules_of(CrossAttentionSpec(block_size=16, **SHAPE))


def draft_groups(specs: list[KVCacheSpec], flagged: set[int], drafts: Drafts | None) -> list[int]:
    groups = [
        KVCacheGroupSpec([f"layer.{i}"], spec, is_eagle_group=i in flagged)
        for i, spec in enumerate(specs)
    ]
    rules = rules_of_groups(groups, drafts=drafts)
    assert {rule.drafts for rule in rules} <= {None, drafts}
    return [i for i, rule in enumerate(rules) if rule.drafts is not None]


def test_where_draft_rows_are() -> None:
    """In flagged groups; without a flag wherever a draft model's layer could be."""
    specs = [FULL, C4, SLIDING, replace(SLIDING, sliding_window=5), state(4, 8)]
    assert draft_groups(specs, {3}, Drafts.NEXT_TOKEN) == [3]
    assert draft_groups(specs, set(), Drafts.NEXT_TOKEN) == [0, 2, 3]
    assert draft_groups(specs, {3}, Drafts.OWN_TOKEN) == [2, 3]
    assert draft_groups(specs, {3}, None) == []
