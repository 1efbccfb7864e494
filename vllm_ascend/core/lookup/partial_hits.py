# SPDX-License-Identifier: Apache-2.0
"""Hits that end inside a block: what they may be copied from, and the copies themselves."""

from __future__ import annotations

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.cache_plan import CachePlan
from vllm_ascend.core.layout.groups import Group, Groups
from vllm_ascend.core.lookup.copy_queue import CopyQueue
from vllm_ascend.core.lookup.unwritten_granules import UnwrittenGranules
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.boundaries import align_down
from vllm_ascend.core.retention.request_record import RequestRecord


class PartialHits:
    """The copies that hits take, and the granules that later hits may be copied from.

    Attributes:
        pool: Where copies and their sources are.
        copies: What workers are told to copy.
    """

    def __init__(self, pool: AscendBlockPool, groups: Groups, plan: CachePlan) -> None:
        """Prepare; the pool lets go of copies before it is reset."""
        self.pool = pool
        self.copies = CopyQueue(pool, until_confirmed=plan.facts.has_connector)
        pool.before_reset = self.copies.prepare_reset
        self._hash_tokens = plan.hash_tokens
        self._groups = [group for group in groups.prefix if group.ends_inside]
        self._unwritten = UnwrittenGranules(
            pool.granules,
            hash_tokens=plan.hash_tokens,
            alignment=plan.alignment,
            event_log=pool.event_log,
        )

    def copy(self, request_id: str, sources: list[tuple[Group, KVCacheBlock]]) -> None:
        """Give a request private copies of blocks, which its hit ends inside of.

        Args:
            sources: Referenced already, so that nothing is allocated over them.
        """
        for group, source in sources:
            (private,) = self.pool.get_new_blocks(1)
            group.manager.req_to_blocks[request_id].append(private)
            self.copies.queue(request_id, source, private)

    def start_behind(self, record: RequestRecord, hit: int) -> None:
        """Enter the granules of copied blocks anew, for the copies."""
        for group in self._groups:
            start = align_down(hit, group.block_tokens)
            record.granules[group.id] = start // self._hash_tokens

    def collect(self, record: RequestRecord, request: Request, num_tokens: int) -> None:
        """Note the granules that a request's first ``num_tokens`` tokens fill, to be entered."""
        for group in self._groups:
            self._unwritten.collect(group, record, request, num_tokens)

    def withdraw(self, request_id: str) -> None:
        """Drop the granules that a request has yet to write: it will not."""
        self._unwritten.forget(request_id)

    def end(self, request_id: str) -> None:
        """A request ends or is preempted, and its blocks are about to be freed."""
        self.copies.forget(request_id)
        self._unwritten.enter(request_id)

    def new_step_starts(self) -> None:
        """The steps before have been dispatched: what they write may be copied from now on."""
        self.copies.new_step_starts()
        self._unwritten.enter_all()
