# SPDX-License-Identifier: Apache-2.0
"""The hybrid coordinator: what is entered, how long it stays, and what a request still needs.

Every running request passes through here in every step. So each request's record says how far it
can go before anything has to be done for it (a new block, a window left behind, a boundary
passed), and until then a call costs one comparison.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from vllm.v1.request import Request

from vllm_ascend.core.admission.block_allocation import AllocatingCoordinator
from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.lookup.unwritten_granules import UnwrittenGranules
from vllm_ascend.core.pool.free_queue import Tier
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool, Rank
from vllm_ascend.core.reporting.cache_stats import CacheUpdate
from vllm_ascend.core.retention.boundaries import align_down
from vllm_ascend.core.retention.freed_blocks import PlacedBlock, deep_first, leave_behind, take_held
from vllm_ascend.core.retention.request_record import RequestRecord
from vllm_ascend.core.retention.returning_prompts import ReturningPrompts
from vllm_ascend.core.retention.tail_cache import Entered

__all__ = ["AscendHybridKVCacheCoordinator"]

_NEVER = 1 << 62


class AscendHybridKVCacheCoordinator(AllocatingCoordinator):
    """Coordinates any number of groups of any block sizes, compressed ones included.

    With none of the project's caching switches on it caches and frees as stock vLLM does. For the
    arguments see :class:`~vllm_ascend.core.lookup.hybrid_lookup.HybridLookupCoordinator`.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._entered_this_step: defaultdict[str, list[Entered]] = defaultdict(list)
        self._frees_withdraw = False
        if not self._changes_caching:
            return
        pool = cast(AscendBlockPool, self.block_pool)
        self._unretained = [group for group in self._groups if not group.is_retained]
        self._unwritten_granules = UnwrittenGranules(
            pool.granules,
            hash_tokens=self.hash_block_size,
            alignment=self.lcm_block_size,
            event_log=pool.event_log,
        )
        self._returning = self._tell_returning(pool)

    def _tell_returning(self, pool: AscendBlockPool) -> ReturningPrompts | None:
        """Return who tells prompts that come again, if they are to be protected."""
        if not (self._config.protect_returning and self._downward_closed):
            return None
        finest = min(self._downward_closed, key=lambda group: group.block_tokens)
        returning = ReturningPrompts(pool, finest.suffix, block_tokens=finest.block_tokens)
        pool.given_up = returning.given_up
        return returning

    # Caching

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Enter what a request's first ``num_computed_tokens`` tokens fill.

        Blocks are entered when they are scheduled, before they are computed, as in vLLM; except
        for what a hit would copy or read before that is done.
        """
        if not self._changes_caching:
            super().cache_blocks(request, num_computed_tokens)
            return
        record = self._record(request.request_id)
        if num_computed_tokens < record.next_cache:
            return
        record.request = request
        if not record.next_cache:
            self._note_start(request, record)
        # A block can be named once the hash that covers it is complete.
        named = align_down(num_computed_tokens, self.hash_block_size)
        record.next_cache = named + self.hash_block_size
        entered = self._entered_this_step[request.request_id]
        for group in self._unretained:
            entered.append(Entered(group, self._enter_full_blocks(group, request, named)))
            if group.ends_inside:
                self._unwritten_granules.collect(group, record, request, named)
        for group in self._retained:
            if group.is_eagle:
                self._successors.resolve_pending(group.id, request)
        tails = self._tails.advance(record, named)
        for group, ordinals in tails:
            self._note_tails(request, group, ordinals)
        entered += tails
        record.cached = named

    def _note_start(self, request: Request, record: RequestRecord) -> None:
        """Judge a request that is scheduled for the first time, if it looked for a hit at all."""
        if record.hit is None or request.num_preemptions:
            return
        self.stats.note_start(
            request.num_prompt_tokens, record.hit, missed_junction=record.missed_junction
        )
        if self._returning is not None and self._returning.includes(request, record.matched):
            self._tails.protect(record)

    def _note_tails(self, request: Request, group: Group, ordinals: Sequence[int]) -> None:
        """Remember of the blocks of tails what a later look-up must know."""
        blocks = group.manager.req_to_blocks[request.request_id]
        if group.is_eagle:
            for ordinal in ordinals:
                end_tokens = (ordinal + 1) * group.block_tokens
                self._successors.remember(group.id, request, blocks[ordinal], end_tokens)
        if group.is_compressor_state:
            self._state_blocks_entered_this_step.update(blocks[i].block_id for i in ordinals)

    def withdraw_unwritten(self, request_id: str) -> None:
        """Take back what a request entered in the step being scheduled and has yet to write.

        Called when it is preempted: its part of the step will not run, so nobody will ever write
        what the blocks' keys promise. What it keeps of earlier steps stays; others may hold it.
        With nothing switched on nothing is remembered and nothing withdrawn, as in stock vLLM.
        """
        if not self._changes_caching:
            return
        self._unwritten_granules.forget(request_id)
        entered = self._entered_this_step.pop(request_id, None)
        if entered is None:
            return
        request = self._records[request_id].request
        assert request is not None, "its blocks are entered, so it has named itself"
        for group, ordinals in entered:
            written = request.num_computed_tokens // group.block_tokens
            blocks = group.manager.req_to_blocks[request_id]
            self.block_pool.evict_blocks({blocks[i].block_id for i in ordinals if i >= written})

    @contextmanager
    def frees_withdraw(self) -> Iterator[None]:
        """Within, a request that is freed loses its part of the step; see the method above.

        For schedulers that free a running request themselves while they schedule.
        """
        self._frees_withdraw = True
        try:
            yield
        finally:
            self._frees_withdraw = False

    def new_step_starts(self) -> None:
        """Called when a new step is started: the one before has been dispatched."""
        super().new_step_starts()
        if not self._changes_caching:
            return
        self._copies.new_step_starts()
        self._sparse_state.release_spares()
        self._unwritten_granules.enter_all()
        self._entered_this_step.clear()

    # Freeing

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Free the blocks that every window has left behind; see the base class.

        A boundary passed by drafts is dealt with once they are accepted: until then its tail is
        held as well. Prompts hold none, and a pool may have no block to spare for them.
        """
        record = self._records.get(request_id)
        if record is None:
            super().remove_skipped_blocks(request_id, total_computed_tokens)
            return
        request = record.request
        confirmed = total_computed_tokens
        if request is None or total_computed_tokens > request.num_prompt_tokens:
            confirmed = max(total_computed_tokens - self._num_draft_tokens, 0)
        if confirmed < record.next_free:
            return
        record.next_free = _NEVER
        left: list[PlacedBlock] = []
        null_block = self.block_pool.null_block
        for group in self._windowed:
            if group.is_retained:
                left += leave_behind(group, record, request_id, confirmed, null_block)
            else:
                group.manager.remove_skipped_blocks(request_id, confirmed)
                record.next_free = 0
        if left:
            self.block_pool.free_blocks(deep_first(left))

    def free(self, request_id: str) -> None:
        """Free a request's blocks, deep ones first over all groups, and refresh what it keeps."""
        if not self._changes_caching:
            super().free(request_id)
            return
        if self._frees_withdraw:
            self.withdraw_unwritten(request_id)
        self._successors.forget(request_id)
        self._copies.forget(request_id)
        self._unwritten_granules.enter(request_id)
        pool = cast(AscendBlockPool, self.block_pool)
        record = self._records.pop(request_id, None)
        held: list[PlacedBlock] = []
        for entry in self._tails.finish(record) if record is not None else ():
            if entry.block.ref_cnt == 0:
                pool.refresh(entry.block)
                held.append((entry.start_token, entry.block))
        protects = record is not None and record.rank is Rank.PROTECTED
        for group in self._groups:
            blocks = take_held(group, record, request_id, pool.null_block)
            if protects and group.is_downward_closed:
                pool.protect(block for _, block in blocks)
            held += blocks
            group.manager.free(request_id)
        if held:
            pool.free_blocks(deep_first(held))

    def take_stats(self) -> CacheUpdate | None:
        """Return what was counted since the last call; ``None`` if nothing, or all is stock."""
        if not self._changes_caching:
            return None
        queue = self.block_pool.free_block_queue
        # -1: the null block is nobody's.
        used = self.block_pool.num_gpu_blocks - 1 - queue.num_free_blocks
        evicted = queue.num_handed_out[Tier.SPARE :]
        return self.stats.take((used, *queue.num_free_by_tier), evicted)

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Return the blocks that all running requests share, per group, for cascade attention.

        Compressed rows are not read that way, so nobody has to count them in every step.
        """
        if not self._changes_caching:
            return super().get_num_common_prefix_blocks(running_request_id)
        return [
            0 if compressed else group.manager.get_num_common_prefix_blocks(running_request_id)
            for group, compressed in zip(self._groups, self._compressed, strict=True)
        ]
