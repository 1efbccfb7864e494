# SPDX-License-Identifier: Apache-2.0
"""The free kept blocks, where a rule decides which of them goes next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from vllm_ascend.core.eviction.block_classes import NUM_QUEUES
from vllm_ascend.core.eviction.learned_rule import LearnedRule
from vllm_ascend.core.eviction.rules import (
    EMPTY,
    OVERFLOW_QUEUES,
    OVERFLOWED,
    RETURNING_QUEUES,
    Waiting,
    oldest,
)


class KeptOrder:
    """The rule in force and the class of every block; it outlives the queue that asks it.

    Attributes:
        rule: Decides.
        queue_of: By block id, the queue in which a block waits when it is free. While it waits,
            the queue alone changes it.
    """

    def __init__(self, rule: LearnedRule, num_blocks: int) -> None:
        """All blocks, with ids from 0 on, are of the first class."""
        self.rule = rule
        self.queue_of = bytearray(num_blocks)


def _time_of_head(queue: FreeKVCacheBlockQueue, times: Sequence[int]) -> int:
    head = queue.fake_free_list_head.next_free_block
    return times[head.block_id] if queue.num_free_blocks else EMPTY


class KeptQueue(FreeKVCacheBlockQueue):
    """One of vLLM's queues for each class, least recently used first; a rule picks between them.

    Their links make one chain, queue by queue, for those who walk it; between two queues it passes
    nodes that are no blocks, as vLLM's own at both ends.
    """

    def __init__(
        self, order: KeptOrder, blocks: Sequence[KVCacheBlock], num_free: Callable[[], int]
    ) -> None:
        """Start empty.

        Args:
            order: Decides who goes next.
            blocks: All that may come are among them, with consecutive ids.
            num_free: How many blocks are free, here and elsewhere.
        """
        super().__init__([])
        self._order = order
        self._num_free = num_free
        # How many were free when a prompt that came again last left something. What is free now is
        # less while a long prompt runs, and their share of it: a flood of such would get through.
        self._room = 0
        self._queues = [FreeKVCacheBlockQueue([]) for _ in range(NUM_QUEUES)]
        self._times = [0] * (blocks[-1].block_id + 1 if blocks else 0)  # by block id
        # Of what was one too many of returning prompts, when it was.
        self._joined = list(self._times)
        for queue, following in pairwise(self._queues):
            queue.fake_free_list_tail.next_free_block = following.fake_free_list_head
            following.fake_free_list_head.prev_free_block = queue.fake_free_list_tail
        self.fake_free_list_head = self._queues[0].fake_free_list_head
        self.fake_free_list_tail = self._queues[-1].fake_free_list_tail

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        """Add blocks behind all others of their classes."""
        queue_of, times, now = self._order.queue_of, self._times, self._order.rule.now
        by_queue: dict[int, list[KVCacheBlock]] = {}
        for block in blocks:
            block_id = block.block_id
            times[block_id] = now
            queue = queue_of[block_id]
            if queue in by_queue:
                by_queue[queue].append(block)
            else:
                by_queue[queue] = [block]
        self.num_free_blocks += len(blocks)
        for queue, added in by_queue.items():
            self._queues[queue].append_n(added)
            if queue in RETURNING_QUEUES:
                self._room = self._num_free()
                self._overflow()

    def _overflow(self) -> None:
        """Let what returning prompts have beyond their share wait as if it was used just now."""
        rule, queues = self._order.rule, self._queues
        lengths = [queue.num_free_blocks for queue in queues]
        missing = rule.num_overflowing(lengths, self._room)
        while missing:
            number = oldest(self._heads(self._times), OVERFLOW_QUEUES)
            joined = OVERFLOW_QUEUES[number]
            moved = queues[number].popleft_n(self._num_alike(queues[number], missing))
            for block in moved:
                self._order.queue_of[block.block_id] = joined
                self._joined[block.block_id] = rule.now
            queues[joined].append_n(moved)
            missing -= len(moved)

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block from wherever it is."""
        self._queues[self._order.queue_of[block.block_id]].remove(block)
        self.num_free_blocks -= 1

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the ``n`` blocks that the rule gives up first; so many must be free."""
        rule, queues = self._order.rule, self._queues
        heads = self._heads(self._times)
        joined = list(heads)
        for number in OVERFLOWED:
            joined[number] = _time_of_head(queues[number], self._joined)
        lengths = [queue.num_free_blocks for queue in queues]
        waiting = Waiting(heads, joined, lengths, self._room, rule.now)
        taken: list[KVCacheBlock] = []
        while missing := n - len(taken):
            victim = rule.victim(waiting)
            queue = queues[victim]
            taken += queue.popleft_n(self._num_alike(queue, missing))
            lengths[victim] = queue.num_free_blocks
            heads[victim] = _time_of_head(queue, self._times)
            times = self._joined if victim in OVERFLOWED else self._times
            joined[victim] = _time_of_head(queue, times)
        self.num_free_blocks -= n
        return taken

    def _heads(self, times: Sequence[int]) -> list[int]:
        return [_time_of_head(queue, times) for queue in self._queues]

    def _num_alike(self, queue: FreeKVCacheBlockQueue, most: int) -> int:
        """Return how many blocks at a queue's head were used at once, up to ``most``.

        They are worth the same, so nobody has to be asked again.
        """
        times, block = self._times, queue.fake_free_list_head.next_free_block
        time, count = times[block.block_id], 0
        most = min(most, queue.num_free_blocks)
        while count < most and times[block.block_id] == time:
            count, block = count + 1, block.next_free_block
        return count

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return all free blocks, queue by queue: which goes next changes with the rule."""
        free: list[KVCacheBlock] = []
        for queue in self._queues:
            block = queue.fake_free_list_head.next_free_block
            for _ in range(queue.num_free_blocks):
                free.append(block)
                block = block.next_free_block
        return free
