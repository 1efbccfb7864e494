# SPDX-License-Identifier: Apache-2.0
"""Tells the learning rule of prompts, and the pool of which class their blocks are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vllm.v1.request import Request

from vllm_ascend.core.eviction.learned_rule import LearnedRule
from vllm_ascend.core.eviction.rules import BlockClass, EvictionRule, is_returning, is_reused
from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.pool.block_names import BlockNames
from vllm_ascend.core.pool.kept_queue import KeptOrder
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.freed_blocks import PlacedBlock
from vllm_ascend.core.retention.request_record import RequestRecord

_SAMPLED_BLOCKS = 2048
# By whether the prompt is returning: the queue of blocks that came before, and that of new ones.
_QUEUES = {
    returning: (BlockClass(returning, True).queue, BlockClass(returning, False).queue)
    for returning in (False, True)
}


class LearnedOrder:
    """Follows prompts by the names of one group that keeps all its rows.

    Attributes:
        rule: Decides which kept block is given up first.
    """

    def __init__(self, pool: AscendBlockPool, group: Group, base: EvictionRule) -> None:
        """Let what is learned decide in ``pool``, and ``base`` until then."""
        self._pool, self._group = pool, group
        self.rule = LearnedRule(base, pool.num_gpu_blocks)
        self._order = KeptOrder(self.rule, pool.num_gpu_blocks)
        pool.keep_by(self._order)

    def start(self, request: Request, record: RequestRecord) -> None:
        """A prompt is scheduled for the first time."""
        names, block_tokens = self._names(request, request.num_prompt_tokens), self._block_tokens
        num_seen = max(self.rule.num_seen(names), min(record.matched // block_tokens, len(names)))
        record.seen = max(num_seen * block_tokens, record.matched)
        record.returning = is_returning(record.seen, request.num_prompt_tokens)
        self.rule.start(names, num_seen, returning=record.returning)

    def classify(
        self, blocks: Iterable[PlacedBlock], record: RequestRecord, block_tokens: int
    ) -> None:
        """Say of what class a request's blocks of a group are that are about to be freed."""
        seen, queue_of = record.seen, self._order.queue_of
        reused, new = _QUEUES[record.returning]
        known = max(record.cached, seen)
        for start, block in blocks:
            end = start + block_tokens
            if start < seen < end:  # one of them at most
                queue = reused if is_reused(start, min(end, known), seen) else new
            else:
                queue = reused if start < seen else new
            queue_of[block.block_id] = queue

    def end(self, record: RequestRecord) -> None:
        """A request ends or is preempted; its blocks are about to be freed."""
        if record.request is None:
            return
        names = self._names(record.request, max(record.cached, record.seen))
        num_seen = record.seen // self._block_tokens
        if self.rule.end(names, num_seen, returning=record.returning):
            self.rule.update(self._capacity())

    @property
    def _block_tokens(self) -> int:
        return self._group.block_tokens

    def _names(self, request: Request, num_tokens: int) -> Sequence[bytes]:
        names = BlockNames(request.block_hashes, self._pool.hash_block_size, self._block_tokens)
        return names.first(num_tokens // self._block_tokens)

    def _capacity(self) -> int:
        """Return about how many names the pool holds once all of its memory is used."""
        pool, suffix = self._pool, self._group.suffix
        # Odd, so that it does not meet blocks of one group only.
        sample = pool.blocks[:: pool.num_gpu_blocks // _SAMPLED_BLOCKS | 1]
        hashes = [block._block_hash for block in sample]
        named = sum(name is not None and name.endswith(suffix) for name in hashes)
        used = pool.num_gpu_blocks - pool.free_block_queue.num_expendable_blocks
        share = named / len(sample) * pool.num_gpu_blocks / max(used, 1)
        return max(round(pool.num_gpu_blocks * min(share, 1)), 1)
