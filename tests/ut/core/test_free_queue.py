# SPDX-License-Identifier: Apache-2.0
"""Tiers against a model of three lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.free_queue import Tier, TieredFreeQueue


def ids(queue: TieredFreeQueue) -> list[int]:
    return [block.block_id for block in queue.get_all_free_blocks()]


@given(st.data())
def test_it_hands_out_scratch_then_spare_then_cached(data):
    """Whatever is added and taken, in whatever order."""
    blocks = [KVCacheBlock(i) for i in range(1, 9)]
    queue = TieredFreeQueue(blocks)
    model: dict[Tier, list[KVCacheBlock]] = {
        Tier.SCRATCH: list(blocks), Tier.SPARE: [], Tier.CACHED: []
    }  # fmt: skip
    out: list[KVCacheBlock] = []
    for _ in range(data.draw(st.integers(0, 30))):
        action = data.draw(st.sampled_from(["pop", "remove", "append", "spare", "prepend"]))
        flat = [block for tier in Tier for block in model[tier]]
        if action == "pop" and flat:
            count = data.draw(st.integers(1, len(flat)))
            assert queue.popleft_n(count) == flat[:count]
            out += flat[:count]
            model = {t: [b for b in model[t] if b not in flat[:count]] for t in Tier}
        elif action == "remove" and flat:
            block = data.draw(st.sampled_from(flat))
            queue.remove(block)
            out.append(block)
            model = {t: [b for b in model[t] if b is not block] for t in Tier}
        elif action in ("append", "spare", "prepend") and out:
            block = out.pop(data.draw(st.integers(0, len(out) - 1)))
            if action == "append":
                queue.append(block)
                model[Tier.CACHED].append(block)
            elif action == "spare":
                queue.append_n([block], Tier.SPARE)
                model[Tier.SPARE].append(block)
            else:
                queue.prepend_n([block])
                model[Tier.SCRATCH].insert(0, block)
        assert ids(queue) == [b.block_id for tier in Tier for b in model[tier]]
        assert queue.num_free_blocks == sum(map(len, model.values()))
        expendable = len(model[Tier.SCRATCH]) + len(model[Tier.SPARE])
        assert queue.num_expendable_blocks == expendable


def test_an_empty_queue_says_so():
    queue = TieredFreeQueue([KVCacheBlock(1)])
    queue.popleft()
    with pytest.raises(ValueError, match="No free blocks"):
        queue.popleft()


def test_what_is_handed_out_is_counted_by_tier():
    blocks = [KVCacheBlock(i) for i in range(6)]
    queue = TieredFreeQueue(blocks)
    taken = queue.popleft_n(6)
    queue.prepend_n(taken[:1])
    queue.append_n(taken[1:3], Tier.SPARE)
    queue.append_n(taken[3:])
    assert queue.num_free_by_tier[:3] == [1, 2, 3]
    queue.popleft_n(4)
    assert queue.num_handed_out[:3] == [7, 2, 1]
    queue.remove(taken[5])
    assert queue.num_handed_out[:3] == [7, 2, 1], "a hit takes it back with what it holds"
    following = TieredFreeQueue(blocks, queue.num_handed_out)
    following.popleft()
    assert following.num_handed_out[:3] == [8, 2, 1]
