# SPDX-License-Identifier: Apache-2.0
"""The queue of kept blocks whose order a rule decides, against what each block is."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.eviction.block_classes import NUM_QUEUES, BlockClass
from vllm_ascend.core.eviction.learned_rule import LearnedRule
from vllm_ascend.core.eviction.rules import Lru, ProtectReturning
from vllm_ascend.core.pool.free_queue import Rank, TieredFreeQueue
from vllm_ascend.core.pool.kept_queue import KeptOrder


class KeptMachine(RuleBasedStateMachine):
    """Blocks of any class are freed, hit and handed out; before anything is learned by LRU."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [KVCacheBlock(i) for i in range(1, 11)]
        self.order = KeptOrder(LearnedRule(Lru(), 10), 11)
        self.queue = TieredFreeQueue(self.blocks, kept_order=self.order)
        self.out = self.queue.popleft_n(10)
        self.model: list[KVCacheBlock] = []

    @precondition(lambda self: self.out)
    @rule(data=st.data(), queue=st.integers(0, NUM_QUEUES - 1))
    def free(self, data: st.DataObject, queue: int) -> None:
        freed = data.draw(st.lists(st.sampled_from(self.out), unique_by=id, min_size=1))
        self.out = [block for block in self.out if block not in freed]
        self.order.rule.now += len(freed)
        for block in freed:
            self.order.queue_of[block.block_id] = queue
        self.queue.append_n(freed, Rank.KEPT)
        self.model += freed

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.model))
        self.queue.remove(block)
        self.model.remove(block)
        self.out.append(block)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.model)))
        taken = self.queue.popleft_n(count)
        assert taken == self.model[:count]
        del self.model[:count]
        self.out += taken

    @invariant()
    def the_links_are_in_order_of_use_queue_by_queue(self) -> None:
        queue_of = self.order.queue_of
        expected = sorted(self.model, key=lambda block: queue_of[block.block_id])
        assert self.queue.get_all_free_blocks() == expected
        assert self.queue.num_free_blocks == len(self.model)
        assert self.walked() == expected

    def walked(self) -> list[KVCacheBlock]:
        """Return what vLLM's CPU offloading meets: it follows the links of the whole queue."""
        met, node = [], self.queue.fake_free_list_head.next_free_block
        while node is not self.queue.fake_free_list_tail:
            met.append(node)
            node = node.next_free_block
        assert all(node.block_hash is None for node in met if node.block_id < 0)
        return [node for node in met if node.block_id > 0]


def test_returning_prompts_keep_their_half_while_long_prompts_hold_the_rest():
    """Those of a flood: one runs, its predecessor's blocks wait, and few others."""
    blocks = [KVCacheBlock(i) for i in range(1, 11)]
    order = KeptOrder(LearnedRule(ProtectReturning(), 10), 11)
    queue = TieredFreeQueue(blocks, kept_order=order)
    taken = queue.popleft_n(10)
    returning, others = taken[:5], taken[5:]
    for block in returning:
        order.queue_of[block.block_id] = BlockClass.RETURNING
    queue.append_n(others, Rank.KEPT)
    queue.append_n(returning, Rank.KEPT)
    assert queue.popleft_n(5) == others
    for block in others:  # less than half of what waits now
        queue.append_n([block], Rank.KEPT)
        assert queue.popleft_n(1) == [block]
    assert queue.popleft_n(5) == returning


def test_beyond_their_half_returning_prompts_wait_as_if_used_just_now():
    blocks = [KVCacheBlock(i) for i in range(1, 11)]
    order = KeptOrder(LearnedRule(ProtectReturning(), 10), 11)
    queue = TieredFreeQueue(blocks, kept_order=order)
    queue.popleft_n(10)
    spare, oldest, new, returning = blocks[:2], blocks[2:4], blocks[4:5], blocks[5:]
    queue.append_n(spare, Rank.SPARE)
    for block in oldest + returning:
        order.queue_of[block.block_id] = BlockClass.RETURNING
    for block in new:
        order.queue_of[block.block_id] = BlockClass.NEW
    for now, freed in enumerate((oldest, new, returning)):
        order.rule.now = now
        queue.append_n(freed, Rank.KEPT)
    # Five of ten are protected; the oldest two went behind what was new.
    assert queue.popleft_n(5) == spare + new + oldest
    assert queue.popleft_n(5) == returning


TestKept = KeptMachine.TestCase
TestKept.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_returning_prompts_have_half_of_all_that_is_free():
    """Four of ten free blocks, four of the six that are kept."""
    blocks = [KVCacheBlock(i) for i in range(1, 11)]
    order = KeptOrder(LearnedRule(ProtectReturning(), 10), 11)
    queue = TieredFreeQueue(blocks, kept_order=order)
    queue.popleft_n(10)
    spare, returning, new = blocks[:4], blocks[4:8], blocks[8:]
    for block in returning:
        order.queue_of[block.block_id] = BlockClass.RETURNING
    for block in new:
        order.queue_of[block.block_id] = BlockClass.NEW
    queue.append_n(spare, Rank.SPARE)
    queue.append_n(new)
    queue.append_n(returning)
    assert queue.popleft_n(6) == spare + new
