# SPDX-License-Identifier: Apache-2.0
"""Hits that end inside a block: what they may be copied from, and the copies themselves."""

from __future__ import annotations

from collections.abc import Iterable

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.layout.groups import Blocks, Group, Groups
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.policy.boundaries import align_down
from vllm_ascend.core.policy.units import BlockId, Granule
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.ledger import Ledger
from vllm_ascend.core.retention.request_record import BlockCopy, RequestRecord, WaitingGranules

_NEVER = 1 << 62


def copied_groups(groups: Iterable[Group], blocks: Blocks, hit: int) -> list[Group]:
    """Return the groups whose last block a hit of ``hit`` tokens ends inside."""
    return [
        group
        for group in groups
        if group.ends_inside and len(blocks[group.id]) * group.block_tokens > hit
    ]


class PartialHits:
    """The copies that hits take, and the granules that later hits may be copied from.

    Attributes:
        pool: Where copies and their sources are; it lets go of sources before it is reset.
    """

    def __init__(
        self, pool: AscendBlockPool, groups: Groups, plan: CachePlan, ledger: Ledger
    ) -> None:
        self.pool, self._ledger = pool, ledger
        pool.before_reset = self._prepare_reset
        self._hash_tokens, self._alignment = plan.hash_tokens, plan.alignment
        self._groups = [group for group in groups.prefix if group.ends_inside]
        # The copies that running requests hold, by the id of their block
        self._held: dict[BlockId, BlockCopy] = {}

    # Copies

    def copy(self, request_id: str, sources: list[tuple[Group, KVCacheBlock]], hit: int) -> None:
        """Give a request private copies of blocks that its hit of ``hit`` tokens ends inside of.

        They are referenced already, so that nothing is allocated over them.
        """
        if not sources:
            return
        record = self._ledger.record(request_id)
        self._ledger.open(record)
        for group, source in sources:
            (private,) = self.pool.get_new_blocks(1)
            group.manager.req_to_blocks[request_id].append(private)
            is_all = hit >= self.pool.granules.kept_until.get(source.block_id, _NEVER)
            copy = BlockCopy(source, private, hit, supersedes=is_all)
            record.copies.append(copy)
            self._held[BlockId(private.block_id)] = copy

    def release(self, record: RequestRecord) -> None:
        """Release the sources of a request's copies that are certain to be made.

        A source that is superseded goes with marginal tails from then on, if its copy can be hit in
        its stead.
        """
        for copy in record.copies:
            if copy.source is not None and copy.is_told:
                if copy.supersedes and self._can_replace(record, copy.source, copy.private):
                    self.pool.let_go([copy.source])
                self._free_source(copy)

    def end(self, record: RequestRecord) -> None:
        """A request ends or is preempted: drop its copies that no step was told to make."""
        if not self._ledger.has_connector:
            self.release(record)
        for copy in record.copies:
            self._held.pop(BlockId(copy.private.block_id), None)
            if copy.source is not None and not copy.is_told:
                self._free_source(copy)

    def _free_source(self, copy: BlockCopy) -> None:
        self.pool.free_blocks([copy.source])
        copy.source = None

    def _can_replace(
        self, record: RequestRecord, source: KVCacheBlock, private: KVCacheBlock
    ) -> bool:
        """Whether a request's copy can be hit from now on, and stays as long as its source."""
        has_ended = record.request is None or (
            self._ledger.records.get(record.request.request_id) is not record
        )
        rank = self.pool.rank(private) if has_ended else record.rank
        if self.pool.rank(source) > rank:
            return False
        return private in self.pool.granules or any(
            block is private
            for entry in record.waiting
            if isinstance(entry, WaitingGranules)
            for block, _ in entry.by_block()
        )

    def _prepare_reset(self) -> None:
        """Release every source if no request holds a block: nobody is left to read the copies."""
        copies, pool = self._ledger.copies_with_sources(), self.pool
        sources = {copy.source.block_id: copy.source for copy in copies if copy.source is not None}
        # -1: the null block is always in use.
        in_use = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        num_references = sum(source.ref_cnt for source in sources.values())
        if len(sources) == in_use and num_references == len(copies):
            for copy in copies:
                self._free_source(copy)

    # Granules

    def start_behind(self, record: RequestRecord, hit: int) -> None:
        """Enter the granules of copied blocks anew, for the copies."""
        for group in self._groups:
            start = align_down(hit, group.block_tokens)
            record.granules[group.id] = Granule(start // self._hash_tokens)

    def collect(self, record: RequestRecord, request: Request, num_tokens: int) -> None:
        """Note the granules that a request's first ``num_tokens`` tokens fill, to be entered.

        These tokens are final, and computed when the step has run. KV events tell of their granules
        at once, since the next step's look-ups will find them.
        """
        # Rows exist up to multiples of the alignment.
        end = align_down(num_tokens, self._alignment) // self._hash_tokens
        for group in self._groups:
            if record.granules.get(group.id, 0) < end:
                self._collect(group, record, request, Granule(end))
                self._ledger.open(record)

    def _collect(self, group: Group, record: RequestRecord, request: Request, end: Granule) -> None:
        """Note the granules of one group up to ``end`` that were not noted before."""
        per_block = group.block_tokens // self._hash_tokens
        first = record.granules.get(group.id, 0)
        blocks = group.manager.req_to_blocks[request.request_id]
        if self.pool.event_log is not None:
            granules = range(first, end)
            self.pool.event_log.granules_stored(group.id, request, blocks, granules, per_block)
        holding = blocks[first // per_block : -(-end // per_block)]
        granules = request.block_hashes[first:end]
        record.waiting.append(WaitingGranules(group, holding, first, granules, per_block))
        record.granules[group.id] = end

    def note_end(self, block: KVCacheBlock, request: Request, end_of_kept: int) -> bool:
        """Whether another block replaces the last one that an ended request keeps.

        A copy in a running request replaces it, if it holds as many tokens and has as high a rank.
        Without such a copy, the end of the needed rows is stored for later copies. A full block is
        shared and never replaced.
        """
        granules = self.pool.granules
        if block._block_hash is not None or block not in granules:
            return False
        rank = self.pool.rank(block)
        granule = request.block_hashes[end_of_kept // self._hash_tokens - 1]
        for other in granules.others(block, granule, self._held):
            # Another block may hold as many granules, but if no hit rests on it, its own request
            # may keep fewer of them.
            is_enough = self._held[BlockId(other.block_id)].num_tokens >= end_of_kept
            if is_enough and self.pool.rank(other) >= rank:
                return True
        granules.kept_until[block.block_id] = end_of_kept
        return False
