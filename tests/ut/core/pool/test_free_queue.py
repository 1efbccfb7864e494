# SPDX-License-Identifier: Apache-2.0
"""Tiers against a model of plain lists, one per tier."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.core.pool.free_queue import TieredFreeQueue

_SPARES = (Rank.SPARE, Rank.SPARE_4, Rank.SPARE_16, Rank.SPARE_64)
QUEUES = (Rank.SCRATCH, *_SPARES, Rank.MARGINAL, Rank.KEPT, Rank.PROTECTED, Rank.PINNED)
_APPENDABLE = [*_SPARES, Rank.MARGINAL, Rank.ROLLING, Rank.KEPT, Rank.PROTECTED, Rank.PINNED]


class QueueMachine(RuleBasedStateMachine):
    """Blocks are freed into any tier, touched wherever they are, and handed out."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [KVCacheBlock(i) for i in range(1, 11)]
        self.queue = TieredFreeQueue(blocks)
        self.model: dict[Rank, list[KVCacheBlock]] = {tier: [] for tier in QUEUES}
        self.model[Rank.SCRATCH] = list(blocks)
        self.out: list[KVCacheBlock] = []

    @property
    def order(self) -> list[KVCacheBlock]:
        return [block for tier in QUEUES for block in self.model[tier]]

    def forget(self, taken: list[KVCacheBlock]) -> None:
        for blocks in self.model.values():
            blocks[:] = [block for block in blocks if block not in taken]
        self.out += taken

    def draw_out(self, data: st.DataObject) -> list[KVCacheBlock]:
        """Some blocks that are in use, in any order; they are not in use any more."""
        chosen = data.draw(st.lists(st.sampled_from(self.out), unique_by=id, min_size=1))
        self.out = [block for block in self.out if block not in chosen]
        return chosen

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.order)))
        expected = self.order[:count]
        assert self.queue.popleft_n(count) == expected
        self.forget(expected)

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        """A hit takes its block from any tier."""
        block = data.draw(st.sampled_from(self.order))
        self.queue.remove(block)
        self.forget([block])

    @precondition(lambda self: self.out)
    @rule(data=st.data(), tier=st.sampled_from(_APPENDABLE))
    def free(self, data: st.DataObject, tier: Rank) -> None:
        blocks = self.draw_out(data)
        self.queue.append_n(blocks, tier)
        self.model[Rank.KEPT if tier is Rank.ROLLING else tier] += blocks

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def free_scratch(self, data: st.DataObject) -> None:
        blocks = self.draw_out(data)
        self.queue.prepend_n(blocks)
        self.model[Rank.SCRATCH][:0] = blocks

    @rule(count=st.integers(0, 12), tier=st.sampled_from([Rank.PROTECTED, Rank.PINNED]))
    def demote(self, count: int, tier: Rank) -> None:
        """The oldest blocks of a tier become the most recently used of the ordinary ones."""
        expected = self.model[tier][:count]
        assert self.queue.demote_n(count, tier) == expected
        del self.model[tier][:count]
        self.model[Rank.KEPT] += expected

    @invariant()
    def same_order_and_counts(self) -> None:
        assert self.queue.get_all_free_blocks() == self.order
        assert self.queue.num_free_blocks == len(self.order)
        expendable = sum(len(self.model[tier]) for tier in QUEUES[: QUEUES.index(Rank.KEPT)])
        assert self.queue.num_expendable_blocks == expendable
        for tier in QUEUES:
            assert self.queue.tier(tier).num_free_blocks == len(self.model[tier])


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_order_is_scratch_spare_cached_protected_and_pinned_oldest_first():
    blocks = [KVCacheBlock(i) for i in range(1, 19)]
    queue = TieredFreeQueue(blocks)
    queue.popleft_n(18)
    for tier in QUEUES[:0:-1]:
        queue.append_n([blocks.pop()], tier)
        queue.append_n([blocks.pop()], tier)
    queue.prepend_n(blocks)
    assert [block.block_id for block in queue.popleft_n(18)] == [
        *(1, 2, 4, 3, 6, 5, 8, 7, 10, 9),
        *(12, 11, 14, 13, 16, 15, 18, 17),
    ]


@pytest.mark.parametrize("size", [100, 10_000])
def test_no_operation_walks_the_queue(size, monkeypatch):
    """However many blocks are free, an operation on one of them looks at its neighbours only."""
    blocks = [KVCacheBlock(i) for i in range(1, size + 1)]
    queue = TieredFreeQueue(blocks)
    queue.popleft_n(size)
    queue.append_n(blocks, Rank.PINNED)
    steps = 0

    def count(self, name):
        nonlocal steps
        steps += name in ("next_free_block", "prev_free_block")
        return object.__getattribute__(self, name)

    monkeypatch.setattr(KVCacheBlock, "__getattribute__", count, raising=False)
    queue.remove(blocks[size // 2])
    queue.append_n([blocks[size // 2]], Rank.PINNED)
    queue.demote_n(1)
    queue.popleft()
    assert 0 < steps < 30


def test_an_empty_queue_says_so():
    queue = TieredFreeQueue([KVCacheBlock(1)])
    queue.popleft()
    with pytest.raises(ValueError, match="No free blocks"):
        queue.popleft()


def test_marginal_blocks_are_counted_as_spare_ones():
    blocks = [KVCacheBlock(i) for i in range(3)]
    queue = TieredFreeQueue(blocks)
    queue.popleft_n(3)
    queue.append_n(blocks[:2], Rank.MARGINAL)
    queue.append_n(blocks[2:], Rank.SPARE)
    assert queue.num_free_by_tier == [0, 3, 0, 0, 0]
    assert queue.popleft_n(2) == [blocks[2], blocks[0]]
    assert queue.num_handed_out == [3, 2, 0, 0, 0]


def test_what_is_handed_out_is_counted_by_tier():
    blocks = [KVCacheBlock(i) for i in range(6)]
    queue = TieredFreeQueue(blocks)
    taken = queue.popleft_n(6)
    queue.prepend_n(taken[:1])
    queue.append_n(taken[1:3], Rank.SPARE)
    queue.append_n(taken[3:])
    assert queue.num_free_by_tier[:3] == [1, 2, 3]
    queue.popleft_n(4)
    assert queue.num_handed_out[:3] == [7, 2, 1]
    queue.remove(taken[5])
    assert queue.num_handed_out[:3] == [7, 2, 1], "a hit takes it back with what it holds"
    following = TieredFreeQueue(blocks, queue.num_handed_out)
    following.popleft()
    assert following.num_handed_out[:3] == [8, 2, 1]
