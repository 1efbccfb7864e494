# SPDX-License-Identifier: Apache-2.0
"""Hits that end inside a block: what they may be copied from, and the copies themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.cache_plan import CachePlan
from vllm_ascend.core.layout.groups import Group, Groups
from vllm_ascend.core.layout.units import BlockId, Granule, GroupId
from vllm_ascend.core.lookup.copy_queue import CopyQueue
from vllm_ascend.core.lookup.hit_search import Blocks
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.boundaries import align_down
from vllm_ascend.core.retention.request_record import RequestRecord

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
        pool: Where copies and their sources are; it lets go of copies before it is reset.
        copies: What workers are told to copy.
        unwritten: Granules that nothing may be copied from yet.
    """

    def __init__(
        self,
        pool: AscendBlockPool,
        groups: Groups,
        plan: CachePlan,
        records: Mapping[str, RequestRecord],
    ) -> None:
        self.pool, self._records = pool, records
        self.unwritten = UnwrittenGranules(pool, plan)
        self.copies = CopyQueue(
            pool,
            can_replace=self._can_replace,
            until_confirmed=plan.facts.has_connector,
        )
        pool.before_reset = self.copies.prepare_reset
        self._hash_tokens = plan.hash_tokens
        self._groups = [group for group in groups.prefix if group.ends_inside]
        # Of running requests: the copies that each was given, and up to which token each was one.
        self._copies_of: defaultdict[str, list[BlockId]] = defaultdict(list)
        self._copied: dict[BlockId, int] = {}

    def copy(self, request_id: str, sources: list[tuple[Group, KVCacheBlock]], hit: int) -> None:
        """Give a request private copies of blocks that its hit of ``hit`` tokens ends inside of.

        They are referenced already, so that nothing is allocated over them.
        """
        kept_until = self.pool.granules.kept_until
        for group, source in sources:
            (private,) = self.pool.get_new_blocks(1)
            group.manager.req_to_blocks[request_id].append(private)
            covers = hit >= kept_until.get(source.block_id, _NEVER)
            self.copies.queue(request_id, source, private, supersedes=covers)
            self._copied[private.block_id] = hit
            self._copies_of[request_id].append(private.block_id)

    def _can_replace(self, request_id: str, source: KVCacheBlock, private: KVCacheBlock) -> bool:
        """Whether a request's copy can be hit from now on, and stays as long as its source."""
        record = self._records.get(request_id)
        rank = self.pool.rank(private) if record is None else record.rank
        stays_as_long = self.pool.rank(source) <= rank
        return stays_as_long and self.unwritten.will_be_found(request_id, private)

    def note_end(self, block: KVCacheBlock, request: Request, end_of_kept: int) -> bool:
        """Say whether another block takes the place of the last one that an ended request keeps.

        It does if a running request copied as many tokens, and it stays as long. If there is none
        yet, it is remembered up to which token the block is needed, for a later copy of as many. A
        block that is full is shared instead.
        """
        granules = self.pool.granules
        if block._block_hash is not None or block not in granules:
            return False
        if self._copied:
            rank = self.pool.rank(block)
            granule = request.block_hashes[end_of_kept // self._hash_tokens - 1]
            for other in granules.others(block, granule):
                # Others may hold as many, but who does not rest on a hit may need less himself.
                num_copied = self._copied.get(other.block_id, 0)
                if num_copied >= end_of_kept and self.pool.rank(other) >= rank:
                    return True
        granules.kept_until[block.block_id] = end_of_kept
        return False

    def start_behind(self, record: RequestRecord, hit: int) -> None:
        """Enter the granules of copied blocks anew, for the copies."""
        for group in self._groups:
            start = align_down(hit, group.block_tokens)
            record.granules[group.id] = Granule(start // self._hash_tokens)

    def collect(self, record: RequestRecord, request: Request, num_tokens: int) -> None:
        """Note the granules that a request's first ``num_tokens`` tokens fill, to be entered."""
        for group in self._groups:
            self.unwritten.collect(group, record, request, num_tokens)

    def end(self, request_id: str) -> None:
        """A request ends or is preempted, and its blocks are about to be freed."""
        self.unwritten.enter(request_id)
        self.copies.forget(request_id)
        for block_id in self._copies_of.pop(request_id, ()):
            self._copied.pop(block_id, None)

    def new_step_starts(self) -> None:
        """The steps before have been dispatched: what they write may be copied from now on."""
        self.unwritten.enter_all()
        self.copies.new_step_starts()


class UnwrittenGranules:
    """Granules that the step being scheduled completes: no copy may rest on them yet.

    A copy is made before the forward pass of its step, so its source must have been written by an
    earlier one. What a step completes is entered once the next one is scheduled; KV events tell of
    it at once, as the next step's look-ups will find it.
    """

    def __init__(self, pool: AscendBlockPool, plan: CachePlan) -> None:
        self._index = pool.granules
        self._event_log = pool.event_log
        self._hash_tokens = plan.hash_tokens
        self._alignment = plan.alignment
        self._waiting: defaultdict[str, list[tuple[GroupId, KVCacheBlock, list[BlockHash]]]] = (
            defaultdict(list)
        )

    def collect(
        self, group: Group, record: RequestRecord, request: Request, num_tokens: int
    ) -> None:
        """Note the granules among a request's first ``num_tokens`` tokens not noted before.

        These tokens are final, and computed when the step has run.
        """
        per_block = group.block_tokens // self._hash_tokens
        first = record.granules.get(group.id, 0)
        # Rows exist up to multiples of the alignment.
        end = align_down(num_tokens, self._alignment) // self._hash_tokens
        blocks = group.manager.req_to_blocks[request.request_id]
        if self._event_log is not None and first < end:
            granules = range(first, end)
            self._event_log.granules_stored(group.id, request, blocks, granules, per_block)
        while first < end:
            ordinal = first // per_block
            block_end = (ordinal + 1) * per_block
            # A hit at a block's end shares it: its last granule needs no entry.
            hashes = request.block_hashes[first : min(end, block_end - 1)]
            if hashes:
                self._waiting[request.request_id].append((group.id, blocks[ordinal], hashes))
            first = min(end, block_end)
        record.granules[group.id] = Granule(max(first, end))

    def enter_all(self) -> None:
        """Enter everything: the step has been dispatched."""
        for request_id in list(self._waiting):
            self.enter(request_id)

    def enter(self, request_id: str) -> None:
        """Enter what one request waits with, before its blocks are freed."""
        for group_id, block, granules in self._waiting.pop(request_id, ()):
            self._index.enter(group_id, block, granules)

    def will_be_found(self, request_id: str, block: KVCacheBlock) -> bool:
        """Whether a request's block has granules that are entered, or will be in the next step."""
        waiting = self._waiting.get(request_id, ())
        return block in self._index or any(other is block for _, other, _ in waiting)

    def forget(self, request_id: str) -> None:
        """Drop what one request waits with: its part of the step will not run."""
        for _, block, granules in self._waiting.pop(request_id, ()):
            if self._event_log is not None:
                self._event_log.granules_withdrawn(block.block_id, granules)
