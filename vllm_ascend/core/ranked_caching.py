# SPDX-License-Identifier: Apache-2.0
"""Caching with any switch on: what is entered, how long it stays, and what requests are given.

Every running request passes through here in every step. So each request's record says how far it
can go before anything has to be done for it (a new block, a window left behind, a boundary
passed), and until then a call costs one comparison.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.admission.block_allocation import BlockAllocation
from vllm_ascend.core.events.announcement import announced_groups
from vllm_ascend.core.group_managers import enter_full_blocks
from vllm_ascend.core.layout.groups import Blocks, Group
from vllm_ascend.core.layout.specs import is_compressed
from vllm_ascend.core.lookup.hit_search import Hit
from vllm_ascend.core.policy.boundaries import align_down
from vllm_ascend.core.policy.protection import is_returning
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.core.policy.units import KVCacheBlockCopy, Ordinal
from vllm_ascend.core.pool.successors import SuccessorHashes
from vllm_ascend.core.reporting.cache_stats import CacheStats, CacheUpdate
from vllm_ascend.core.retention.freed_blocks import (
    PlacedBlocks,
    leave_behind,
    take_remaining_blocks,
)
from vllm_ascend.core.retention.partial_hits import PartialHits
from vllm_ascend.core.retention.request_record import EnteredBlocks, RequestRecord, WaitingTails
from vllm_ascend.core.retention.returning_prompts import ReturningPrompts
from vllm_ascend.core.retention.sparse_state import SparseState
from vllm_ascend.core.retention.tail_cache import TailCache
from vllm_ascend.kv_events.layout import EngineRules

_NEVER = 1 << 62


class RankedCaching(BlockAllocation, KVCacheCoordinator):
    """Caches what can be hit, with a rank that says how long.

    It is put over the coordinator that works as vLLM's own, whose attributes it reads.

    Attributes:
        tails: Enters the tails of boundaries.
        sparse_state: Decides which blocks of compressor state are real.
        partial_hits: Hits that end inside a block.
        returning: Tells which prompts come again; ``None`` where nobody asks.
    """

    successors: SuccessorHashes
    stats: CacheStats
    # A request that is freed loses its part of the step being scheduled.
    _frees_withdraw = False

    def connect_parts_by_rank(self) -> None:
        """Build what ranks take, over the pool and groups that are there."""
        pool, groups, plan = self.block_pool, self.groups, self.plan
        self._compressed = [is_compressed(spec) for spec in plan.specs]
        pool.draft_groups = frozenset(group.id for group in groups.all if group.is_eagle)
        lookahead = plan.hash_tokens if pool.draft_groups else 0
        self.tails = TailCache(
            pool,
            groups.retained,
            plan,
            lookahead=lookahead,
            # A boundary need not be the end of any group's block.
            least_gain_tokens=groups.tokens_for_a_tail(plan.whole_block_tokens + plan.alignment),
            stats=self.stats,
        )
        self.sparse_state = SparseState(pool, groups.all, self.tails, self.ledger.records, plan)
        self.partial_hits = PartialHits(pool, groups, plan, self.ledger)
        self.returning: ReturningPrompts | None = None
        if groups.prefix and plan.config.remembers_given_up:
            finest = min(groups.prefix, key=lambda group: group.block_tokens)
            self.returning = ReturningPrompts(pool, finest.suffix, block_tokens=finest.block_tokens)
            pool.given_up = self.returning.given_up
        self._describe_events()

    def _describe_events(self) -> None:
        """Tell those who follow the cache's events what a hit takes."""
        plan, log = self.plan, self.block_pool.event_log
        if log is None:
            return
        rules = EngineRules(len(self.groups.all), plan.alignment, plan.hash_tokens)
        log.describe(announced_groups(self.groups.all, plan.specs, rules), rules)

    # Look-up

    def note_hit(self, request: Request, hit: Hit) -> None:
        """Remember where the request leaves what is cached; its tail there is worth keeping."""
        record = self.ledger.record(request.request_id)
        record.num_hit_tokens, record.num_matched_tokens = hit.tokens, hit.matched
        if self.groups.prefix:
            record.junction = self.tails.rules.finish(hit.matched)
            record.missed_junction = record.junction > hit.resumable

    # Memory

    def take_hit(self, request_id: str, blocks: Blocks, num_local: int, num_external: int) -> None:
        """Let a request in behind its hit; see vLLM's ``allocate_new_computed_blocks``."""
        # Looked up before anything is allocated: if external tokens end behind this tail, nobody
        # holds its blocks, and allocating could take them.
        tail = self.tails.tail_of_hit(blocks, num_local)
        num_copies = self.take_blocks(request_id, blocks, num_local, num_external)
        self.stats.partial_hits += bool(num_copies)
        if not (num_local or num_external):
            return
        record = self.ledger.record(request_id)
        end = num_local + num_external
        record.loaded = num_local, end
        # Of what is loaded, the boundary at its end alone can have a tail here: it is yet to pass.
        record.passed = end - 1 if num_external else end
        if not num_local:
            return
        record.cached = num_local
        if tail is not None:
            for group in self.groups.retained:
                start = max(group.tail(num_local).start, record.freed.get(group.id, 0))
                record.freed[group.id] = Ordinal(start)
            self.tails.keep_hit(record, tail)
        # They may have been there for marginal tails alone, or be somebody's who has yet to end.
        for group in self.groups.prefix:
            self.block_pool.keep(blocks[group.id][: num_local // group.block_tokens])
        self.partial_hits.start_behind(record, num_local)

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Return the blocks that all running requests share, per group, for cascade attention.

        Compressed rows are not read that way, so nobody has to count them in every step.
        """
        return [
            0 if compressed else group.manager.get_num_common_prefix_blocks(running_request_id)
            for group, compressed in zip(self.groups.all, self._compressed, strict=True)
        ]

    # Caching

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Enter what a request's first ``num_computed_tokens`` tokens fill and a hit can rest on.

        Blocks are entered when they are scheduled, before they are computed, as in vLLM; except
        for what a hit would copy or read before that is done.
        """
        record = self.ledger.records.get(request.request_id)
        if record is None:
            record = self.ledger.record(request.request_id)
        elif num_computed_tokens < record.next_cache:  # as in most steps
            return
        record.request = request
        if not (record.next_cache or record.num_noted_tokens):
            self._note_start(request, record)
        if self.ledger.awaits_load(request, num_computed_tokens):
            return
        # A block can be named once the hash that covers it is complete.
        named = align_down(num_computed_tokens, self.plan.hash_tokens)
        record.next_cache = named + self.plan.hash_tokens
        self.ledger.open(record)
        terms = self.plan.terms
        for group in self.groups.all:
            if not group.is_retained:
                end = min(named, record.end_before_stale(group)) if group.is_eagle else named
                ordinals = enter_full_blocks(group, request, end, self.successors, terms)
                record.entered.append(EnteredBlocks(group, ordinals))
            elif group.is_eagle:
                self.successors.resolve_pending(group.id, request)
        self.partial_hits.collect(record, request, named)
        tails = self.tails.advance(record, named)
        for group, ordinals in tails:
            self._note_successors(request, group, ordinals)
        record.entered += tails
        record.cached = named

    def _note_start(self, request: Request, record: RequestRecord) -> None:
        """Judge a request that is scheduled for the first time, if it looked for a hit at all."""
        if record.num_hit_tokens is None or request.num_preemptions:
            return
        self.stats.note_start(
            request.num_prompt_tokens, record.num_hit_tokens, missed_junction=record.missed_junction
        )
        matched = record.num_matched_tokens
        if self.returning is None or not self.returning.includes(request, matched):
            return
        if self.plan.config.eviction == "protect":
            self.tails.protect(record)
        _, loaded = record.loaded
        self.stats.lost_prompts += not is_returning(
            max(record.num_hit_tokens, loaded), request.num_prompt_tokens
        )

    def _note_successors(self, request: Request, group: Group, ordinals: Sequence[int]) -> None:
        """Remember what follows the blocks of tails that a draft model's layers are in."""
        if group.is_eagle:
            blocks = group.manager.req_to_blocks[request.request_id]
            for ordinal in ordinals:
                end_tokens = (ordinal + 1) * group.block_tokens
                self.successors.remember(group.id, request, blocks[ordinal], end_tokens)

    def withdraw_unwritten(self, request_id: str) -> None:
        """Take back what a request entered in the step being scheduled and has yet to write.

        Called when it is preempted: its part of the step will not run, so nobody will ever write
        what the blocks' keys promise. What it keeps of earlier steps stays; others may hold it.
        """
        record = self.ledger.records.get(request_id)
        if record is None:
            return
        self._drop_waiting(record)
        for group, ordinals in record.entered:
            assert record.request is not None, "its blocks are entered, so it has named itself"
            written = record.request.num_computed_tokens // group.block_tokens
            blocks = group.manager.req_to_blocks[request_id]
            self.block_pool.evict_blocks({blocks[i].block_id for i in ordinals if i >= written})
        record.entered.clear()

    def lose(self, request_id: str) -> None:
        """Enter nothing more of a request: it rests on blocks that could not be loaded."""
        record = self.ledger.record(request_id)
        record.is_loading = True
        self._drop_waiting(record)

    def _drop_waiting(self, record: RequestRecord) -> None:
        """Drop what was to be entered when the next step starts: it will not be written."""
        log, waiting = self.block_pool.event_log, record.waiting
        record.waiting = []
        if log is None:
            return
        for entry in waiting:
            if not isinstance(entry, WaitingTails):
                for block, granules in entry.by_block():
                    log.granules_withdrawn(block.block_id, granules)
                continue
            assert record.request is not None, "its blocks wait, so it has named itself"
            blocks = entry.group.manager.req_to_blocks[record.request.request_id]
            for block in (blocks[ordinal] for ordinal in entry.ordinals):
                if block._block_hash is None:
                    log.block_evicted(block.block_id)

    def _settle(self, record: RequestRecord) -> None:
        """Enter what waits on a record: the step that writes it has been dispatched."""
        record.entered.clear()
        waiting, record.waiting = record.waiting, []
        for entry in waiting:
            group = entry.group
            if not isinstance(entry, WaitingTails):
                for block, granules in entry.by_block():
                    self.block_pool.granules.enter(group.id, block, granules)
                continue
            assert record.request is not None, "its blocks wait, so it has named itself"
            blocks = group.manager.req_to_blocks[record.request.request_id]
            where = (group.block_tokens, group.id)
            new = self.block_pool.enter(record.request, blocks, entry.ordinals, *where, entry.rank)
            # They were told when they began to wait; not those that were evicted meanwhile.
            self.block_pool.announce(record.request, blocks, new, *where)
            self._note_successors(record.request, group, entry.ordinals)

    # Freeing

    def remove_skipped_blocks(
        self, request_id: str, total_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Free the blocks that every window has left behind; see vLLM's base class.

        A boundary passed by drafts is dealt with once they are accepted: until then its tail is
        held as well. Prompts hold none, and a pool may have no block to spare for them.
        """
        record, confirmed = self.ledger.records.get(request_id), total_computed_tokens
        if record is not None and confirmed < record.next_free:  # as in most steps
            return
        request = None if record is None else record.request
        if request is None or total_computed_tokens > request.num_prompt_tokens:
            confirmed = max(total_computed_tokens - self.plan.num_unconfirmed_tokens, 0)
        if record is None:
            for group in self.groups.windowed:
                group.manager.remove_skipped_blocks(request_id, confirmed)
            return
        if confirmed < record.next_free:
            return
        if record.waiting:  # A request that a connector hands over ends here, before the next step.
            self._settle(record)
        # A connector may write into a block at once, beside the steps that still read it.
        in_flight = 0 if request is None else self.plan.terms.in_flight_tokens(request)
        settled = max(confirmed - in_flight, 0)
        record.next_free = _NEVER
        left = PlacedBlocks()
        for group in self.groups.windowed:
            if group.is_retained:
                null_block = self.block_pool.null_block
                left.extend(leave_behind(group, record, request_id, settled, null_block))
            else:
                group.manager.remove_skipped_blocks(request_id, confirmed)
                record.next_free = 0
        if left:
            freed = left.deep_first()
            # Most of what a window leaves behind can never be hit: it is handed out next.
            scratch = [block for block in freed if block._block_hash is None]
            self.block_pool.free_blocks(scratch, prepend=True)
            if len(scratch) < len(freed):
                self.block_pool.free_blocks([b for b in freed if b._block_hash is not None])

    def free(self, request_id: str) -> None:
        """Free a request's blocks, deep ones first over all groups, and refresh what it keeps."""
        if blocks := self._take_all(request_id):
            self.block_pool.free_blocks(blocks)

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """Take a request's blocks from it, in the reverse order of :meth:`free`."""
        return self._take_all(request_id)[::-1]

    def _take_all(self, request_id: str) -> list[KVCacheBlock]:
        if self._frees_withdraw:
            self.withdraw_unwritten(request_id)
        self.successors.forget(request_id)
        record = self.ledger.records.get(request_id)
        if record is not None:
            self._settle(record)
            self.partial_hits.end(record)
            self.ledger.forget(request_id)
        held = PlacedBlocks()
        ended = () if record is None else self.tails.finish(record)
        for entry in ended:
            if entry.block.ref_cnt == 0:
                self.block_pool.refresh(entry.block)
                held.append(entry.start_token, entry.block)
        for group in self.groups.all:
            blocks = take_remaining_blocks(group, record, request_id, self.block_pool.null_block)
            if record is not None and group.is_downward_closed:
                self._rank_rows(blocks, record)
            held.extend(blocks)
            group.manager.free(request_id)
        if record is not None and record.request is not None and record.request.is_finished():
            # Its tokens go now, and not when the next step lets go of the record.
            record.request = None
        return held.deep_first()

    @contextmanager
    def preempting(self, request_id: str) -> Iterator[None]:
        """Within, a running request is freed that will come back.

        What it entered and has yet to write is withdrawn. What is known of its prompt stays.
        """
        self.withdraw_unwritten(request_id)
        rank = self.ledger.record(request_id).rank
        yield
        self.resume(request_id, rank)

    def resume(self, request_id: str, rank: Rank) -> None:
        """A request was preempted and will come back; what it keeps had the given rank."""
        record = self.ledger.record(request_id)
        record.rank, record.is_resumed = rank, True

    @contextmanager
    def frees_withdraw(self) -> Iterator[None]:
        """Within, a request that is freed loses its part of the step being scheduled.

        For schedulers that free a running request themselves while they schedule.
        """
        self._frees_withdraw = True
        try:
            yield
        finally:
            self._frees_withdraw = False

    def _rank_rows(self, placed: PlacedBlocks, record: RequestRecord) -> None:
        """Rank the rows of a finished request."""
        rows = placed.blocks
        num_kept, request, end_of_kept = len(rows), record.request, record.end_of_kept
        if end_of_kept and request is not None:
            num_kept = bisect_left(placed.starts, end_of_kept)
            if num_kept and self.partial_hits.note_end(rows[num_kept - 1], request, end_of_kept):
                num_kept -= 1
            self.block_pool.let_go(rows[num_kept:])
        if record.rank is Rank.PROTECTED:
            self.block_pool.protect(rows[:num_kept])

    # Steps

    def settle(self, records: Iterable[RequestRecord]) -> None:
        """The step before has been dispatched: what it writes may be read from now on."""
        for record in records:
            self._settle(record)
            if not self.ledger.has_connector:
                self.partial_hits.release(record)
        self.sparse_state.release_spares()

    def take_block_copies(self) -> list[KVCacheBlockCopy] | None:
        """Return the copies that the step just scheduled must make first, ``None`` if none."""
        copies = self.ledger.copies_to_tell()
        self.stats.copied_blocks += len(copies)
        return copies or None

    def release_copies(self, record: RequestRecord) -> None:
        """The step that was told a request's copies has run."""
        self.partial_hits.release(record)

    def take_stats(self) -> CacheUpdate | None:
        """Return what was counted since the last call; ``None`` if nothing was."""
        queue = self.block_pool.free_block_queue
        # -1: the null block is nobody's.
        used = self.block_pool.num_gpu_blocks - 1 - queue.num_free_blocks
        evicted = queue.num_handed_out[1:]  # from spare on
        return self.stats.take((used, *queue.num_free_by_tier), evicted)
