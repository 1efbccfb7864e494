# SPDX-License-Identifier: Apache-2.0
"""Tells the learning rule of prompts, and the pool of which class their blocks are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vllm.v1.request import Request

from vllm_ascend.core.eviction.block_classes import (
    BlockClass,
    PromptLengths,
    is_mostly_hit,
    is_returning,
    queues_of,
)
from vllm_ascend.core.eviction.learned_rule import LearnedRule
from vllm_ascend.core.eviction.rules import EvictionRule
from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.pool.block_names import BlockNames
from vllm_ascend.core.pool.kept_queue import KeptOrder
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.freed_blocks import PlacedBlock
from vllm_ascend.core.retention.request_record import RequestRecord

_SAMPLED_BLOCKS = 2048


class LearnedOrder:
    """Follows prompts by the names of one group that keeps all its rows.

    Attributes:
        rule: Decides which kept block is given up first.
    """

    def __init__(self, pool: AscendBlockPool, group: Group, base: EvictionRule) -> None:
        """Let what is learned decide in ``pool``, and ``base`` until then."""
        self._pool, self._group = pool, group
        self.rule = LearnedRule(base, pool.num_gpu_blocks)
        self._lengths = PromptLengths()
        self._order = KeptOrder(self.rule, pool.num_gpu_blocks)
        pool.keep_by(self._order)

    def start(self, request: Request, record: RequestRecord) -> None:
        """A prompt is scheduled for the first time."""
        names, block_tokens = self._names(request, request.num_prompt_tokens), self._block_tokens
        num_seen = max(self.rule.num_seen(names), min(record.matched // block_tokens, len(names)))
        record.seen = max(num_seen * block_tokens, record.matched)
        record.found = record.matched
        is_long = self._lengths.is_long(request.num_prompt_tokens)
        if is_returning(record.seen, request.num_prompt_tokens):
            record.rest = BlockClass.RETURNING
        else:
            record.rest = BlockClass.LONG if is_long else BlockClass.NEW
        self.rule.start(names, num_seen, self._queues(names, record))

    def classify(
        self, blocks: Iterable[PlacedBlock], record: RequestRecord, block_tokens: int
    ) -> None:
        """Say of what class a request's blocks of a group are that are about to be freed."""
        # As plain ints: see the pool's ranks.
        found, hit, rest = record.found, int(record.rest.hit), int(record.rest)
        queue_of = self._order.queue_of
        known, last_found = max(record.cached, record.seen), found - block_tokens
        for start, block in blocks:
            if start >= found:
                queue = rest
            elif start <= last_found:
                queue = hit
            else:  # one of them at most
                end = min(start + block_tokens, known)
                queue = hit if is_mostly_hit(start, end, found) else rest
            queue_of[block.block_id] = queue

    def end(self, record: RequestRecord) -> None:
        """A request ends or is preempted; its blocks are about to be freed."""
        if record.request is None:
            return
        names = self._names(record.request, max(record.cached, record.seen))
        if self.rule.end(names, self._queues(names, record)):
            self.rule.update(self._capacity())

    @property
    def _block_tokens(self) -> int:
        return self._group.block_tokens

    def _names(self, request: Request, num_tokens: int) -> Sequence[bytes]:
        names = BlockNames(request.block_hashes, self._pool.hash_block_size, self._block_tokens)
        return names.first(num_tokens // self._block_tokens)

    def _queues(self, names: Sequence[bytes], record: RequestRecord) -> list[int]:
        return queues_of(len(names), record.found // self._block_tokens, record.rest)

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
