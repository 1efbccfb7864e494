# SPDX-License-Identifier: Apache-2.0
"""How many blocks a request needs to be let in, behind its hit."""

from __future__ import annotations

import pytest
from vllm.v1.kv_cache_interface import KVCacheSpec

from tests.ut.core.real_groups import Caching, full, make_groups, make_plan, window
from vllm_ascend.core.layout.groups import Groups
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool


class Admission:
    """A request that hits 32 tokens in one group with blocks of 4; steps of 16 tokens."""

    def __init__(self, spec: KVCacheSpec, num_null: int = 0) -> None:
        self.pool = AscendBlockPool(60, True, 4)
        groups = make_groups(spec, alignment=4, pool=self.pool)
        plan = make_plan(spec, alignment=4, max_num_batched_tokens=16)
        self.allocation = Caching(self.pool, Groups(tuple(groups)), plan)
        self.group = groups[0]
        self.hit = [self.pool.null_block] * num_null + self.pool.get_new_blocks(8 - num_null)

    def needed(self, num_tokens: int, *, capped: bool) -> int:
        return self.allocation.blocks_needed(
            "r", num_tokens, (self.hit,), 0, 32, num_tokens, apply_admission_cap=capped
        )


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize(("num_tokens", "blocks"), [(32, 0), (33, 1), (36, 1), (37, 2), (64, 8)])
def test_full_attention_needs_all_blocks_behind_the_hit(num_tokens, blocks, capped):
    admission = Admission(full(4))
    for block in admission.hit:
        assert block.ref_cnt == 1  # in use, so the hit itself takes no free block
    assert admission.needed(num_tokens, capped=capped) == blocks


def test_a_window_needs_memory_behind_a_long_hit():
    """Of the hit [24, 32) is real. A step of 16 tokens behind a window of 8 spans 7 blocks.

    vLLM's cap counts from the first token and leaves nothing.
    """
    admission = Admission(window(4, 9), num_null=6)
    assert admission.needed(64, capped=False) == 8
    assert admission.needed(64, capped=True) == 7
    assert admission.needed(40, capped=True) == 2


def test_what_a_request_holds_already_counts_towards_the_most_it_may():
    """A connector has loaded two blocks; the null block in front of them is nobody's memory."""
    admission = Admission(window(4, 9))
    held = [admission.pool.null_block, *admission.pool.get_new_blocks(2)]
    admission.group.manager.req_to_blocks["r"] = held
    admission.hit = []
    assert admission.needed(64, capped=True) == 5
