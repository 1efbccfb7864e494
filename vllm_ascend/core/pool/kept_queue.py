# SPDX-License-Identifier: Apache-2.0
"""The free kept blocks, where a rule decides which of them goes next."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from vllm_ascend.core.eviction.class_queues import ClassQueues
from vllm_ascend.core.eviction.learned_rule import LearnedRule


class KeptOrder:
    """The rule in force and the class of every block; it outlives the queue that asks it.

    Attributes:
        rule: Decides.
        queue_of: By block id, the queue in which a block is to wait when it is free.
    """

    def __init__(self, rule: LearnedRule, num_blocks: int) -> None:
        """All blocks, with ids from 0 on, are of the first class."""
        self.rule = rule
        self.queue_of = bytearray(num_blocks)


class KeptQueue(FreeKVCacheBlockQueue):
    """vLLM's queue, least recently used first; what is handed out a rule picks.

    ``get_all_free_blocks`` returns the order of use, not that of the rule, which may change.
    """

    def __init__(self, order: KeptOrder, blocks: Sequence[KVCacheBlock]) -> None:
        """Start empty. All blocks that may come are among ``blocks``, with consecutive ids."""
        super().__init__([])
        self._order = order
        self._blocks, self._first_id = blocks, blocks[0].block_id if blocks else 0
        self._waiting: ClassQueues[int] = ClassQueues()

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        """Add blocks behind all others of their classes."""
        super().append_n(blocks)
        queue_of, add, now = self._order.queue_of, self._waiting.add, self._order.rule.now
        for block in blocks:
            add(block.block_id, queue_of[block.block_id], now)

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block from wherever it is."""
        super().remove(block)
        self._waiting.discard(block.block_id)

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the ``n`` blocks that the rule gives up first; so many must be free."""
        rule = self._order.rule
        given_up = self._waiting.give_up(n, rule, rule.now)
        taken = [self._blocks[block_id - self._first_id] for block_id in given_up]
        for block in taken:
            super().remove(block)
        return taken
