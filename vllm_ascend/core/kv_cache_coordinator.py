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
from operator import itemgetter
from typing import cast

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.ascend_block_pool import AscendBlockPool
from vllm_ascend.core.block_copies import BlockCopies, KVCacheBlockCopy
from vllm_ascend.core.cache_stats import CacheUpdate
from vllm_ascend.core.connector_rules import ConnectorQuery, look_up_limit
from vllm_ascend.core.free_queue import Tier
from vllm_ascend.core.hybrid_lookup import HybridLookupCoordinator
from vllm_ascend.core.prefix_lookup import Group
from vllm_ascend.core.request_record import RequestRecord, TailBlock
from vllm_ascend.core.retention import align_down
from vllm_ascend.core.sparse_state import SparseState
from vllm_ascend.core.specs import group_specs, is_compressed
from vllm_ascend.core.tail_cache import Entered, TailCache
from vllm_ascend.core.unwritten_granules import UnwrittenGranules

__all__ = ["AscendHybridKVCacheCoordinator"]

Blocks = tuple[Sequence[KVCacheBlock], ...]
_NEVER = 1 << 62


class AscendHybridKVCacheCoordinator(HybridLookupCoordinator):
    """Coordinates any number of groups of any block sizes, compressed ones included.

    With none of the project's caching switches on it caches and frees as stock vLLM does. For the
    arguments see :class:`HybridLookupCoordinator`.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._records: dict[str, RequestRecord] = {}
        self._looking_up: RequestRecord | None = None
        self._request_looked_up: Request | None = None
        self._connector: ConnectorQuery | None = None
        self._compressed = [is_compressed(spec) for spec in group_specs(self.kv_cache_config)]
        self._entered_this_step: defaultdict[str, list[Entered]] = defaultdict(list)
        self._frees_withdraw = False
        self._no_blocks: tuple[list[KVCacheBlock], ...] = tuple([] for _ in self._groups)
        if not self._changes_caching:
            return
        pool = cast(AscendBlockPool, self.block_pool)
        self._copies = BlockCopies(pool)
        self._unwritten_granules = UnwrittenGranules(
            pool.granules,
            hash_tokens=self.hash_block_size,
            alignment=self.lcm_block_size,
            event_log=pool.event_log,
        )
        self._retained = [group for group in self._groups if group.is_retained]
        self._unretained = [group for group in self._groups if not group.is_retained]
        # Groups of other kinds (Mamba, chunked local) know themselves what they need in a step.
        self._foresees = all(g.is_downward_closed or g.is_retained for g in self._groups)
        # So far a step may start before, or commit behind, what the scheduler counts: drafts of the
        # step in flight may be rejected, and those of one step pass a boundary together.
        self._num_draft_tokens = self._facts.num_draft_tokens + self._facts.num_unconfirmed_tokens
        self._lookahead = self.hash_block_size if self.eagle_group_ids else 0
        pins = self._config.pin_swa_tokens
        # Kept like prefixes, the tails of all boundaries would push out the prefixes that the
        # pinned ones belong to: without an interval those that are not pinned are spare.
        is_dense = self.local_kv_retention_interval is None
        self._tails = TailCache(
            pool,
            self._retained,
            alignment=self.lcm_block_size,
            interval=0 if pins and is_dense else self.local_kv_retention_interval,
            lookahead=self._lookahead,
            keeps_fallback=self._keeps_fallback,
            keeps_spares=self._config.spare_tails or (pins and is_dense),
            pin_min_drop=self._config.pin_min_drop_size if pins else None,
            stats=self.stats,
        )
        self._sparse_state = SparseState(
            pool,
            self._groups,
            self._tails,
            self._records,
            num_draft_tokens=self._num_draft_tokens,
            max_num_batched_tokens=self._max_num_batched_tokens,
        )

    # Look-up

    @contextmanager
    def looking_up(self, request: Request) -> Iterator[None]:
        """Say whose hashes are looked up inside."""
        self._request_looked_up = request
        if self._connector is not None:
            self._connector.forget()
        if self._changes_caching:
            self._looking_up = record = self._record(request.request_id)
            record.request = request
        try:
            yield
        finally:
            self._looking_up = self._request_looked_up = None

    def ask_connector(self, query: ConnectorQuery) -> None:
        """Ask before a hit ends inside a block; without it none does where there is a connector."""
        self._connector = query

    def find_longest_cache_hit(
        self, block_hashes: list[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the longest hit; see the base class."""
        request = self._request_looked_up
        # Prompts are shortened for models with compressed rows (vllm-ascend's connectors).
        if request is not None and any(self._compressed):
            limit = look_up_limit(request.num_tokens, request.kv_transfer_params)
            max_cache_hit_length = min(max_cache_hit_length, limit)
        return super().find_longest_cache_hit(block_hashes, max_cache_hit_length)

    def _external_tokens_follow(self, num_local_tokens: int) -> bool:
        request = self._request_looked_up
        if self._connector is None or request is None:
            return super()._external_tokens_follow(num_local_tokens)
        return self._connector.brings_tokens(request, num_local_tokens)

    def _record(self, request_id: str) -> RequestRecord:
        record = self._records.get(request_id)
        if record is None:
            record = self._records[request_id] = RequestRecord()
        return record

    def _note_look_up(self, matched: int, resumable: int, hit: int) -> None:
        """Remember where the request leaves what is cached; its tail there is worth keeping."""
        record = self._looking_up
        if record is None:
            return
        record.hit = hit
        if self._downward_closed:
            junction = max(matched - self._lookahead, 0)
            record.junction = align_down(junction, self.lcm_block_size)
            record.missed_junction = record.junction > resumable

    # Allocation

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Blocks,
        num_encoder_tokens: int,
        total_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """Return the blocks that a request still needs; see vLLM's base class.

        A hit that ends inside a block needs one more for the copy. And vLLM caps a windowed
        group's blocks counted from the request's first token, and then deducts those in front of
        the window: behind a long hit nothing is left, the request is let in without memory for its
        next chunk, and preempts itself over and over. Here the cap bounds what is needed behind
        the hit.
        """
        record = self._records.get(request_id)
        if record is not None and record.capacity:
            # It is running: a group that has blocks enough needs none, and most have.
            return sum(
                group.manager.get_num_blocks_to_allocate(
                    request_id, num_tokens, (), total_computed_tokens, num_tokens_main_model
                )
                for group in self._short_groups(record, request_id, num_tokens)
            )
        if not self._changes_caching:
            return super().get_num_blocks_to_allocate(
                request_id,
                num_tokens,
                new_computed_blocks,
                num_encoder_tokens,
                total_computed_tokens,
                num_tokens_main_model,
                apply_admission_cap,
            )

        def needed(group: Group) -> int:
            blocks = group.manager.get_num_blocks_to_allocate(
                request_id,
                num_tokens,
                new_computed_blocks[group.id],
                total_computed_tokens,
                num_tokens_main_model,
                apply_admission_cap=apply_admission_cap and group.is_downward_closed,
            )
            cap = group.manager._max_admission_blocks_per_request
            if not apply_admission_cap or group.is_downward_closed or cap is None:
                return blocks
            if self._sparse_state.is_sparse(group):
                # Counted over the whole prompt: the tails that it keeps, and the end of one chunk.
                blocks += cdiv(group.window, group.block_tokens) + 1
            return min(blocks, cap + cdiv(self._num_draft_tokens, group.block_tokens))

        copies = len(self._copied_groups(new_computed_blocks, total_computed_tokens))
        return sum(map(needed, self._groups)) + copies

    def _short_groups(
        self, record: RequestRecord, request_id: str, num_tokens: int
    ) -> Sequence[Group]:
        """Return the groups in which a running request has fewer blocks than it needs."""
        if num_tokens <= record.capacity:
            return ()
        return [
            group
            for group in self._groups
            if len(group.manager.req_to_blocks[request_id]) * group.block_tokens < num_tokens
        ]

    def _copied_groups(self, blocks: Blocks, num_tokens: int) -> list[Group]:
        """Return the groups whose last block a hit of ``num_tokens`` tokens ends inside."""
        return [
            group
            for group in self._downward_closed
            if group.ends_inside and len(blocks[group.id]) * group.block_tokens > num_tokens
        ]

    def allocate_new_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Blocks,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        """Take a hit's blocks; a block that it ends inside is replaced by a private copy.

        Everything is referenced before the first copy is allocated, so that no allocation can
        take what the same hit rests on.
        """
        if not self._changes_caching:
            super().allocate_new_computed_blocks(
                request_id,
                new_computed_blocks,
                num_local_computed_tokens,
                num_external_computed_tokens,
            )
            return
        copied = self._copied_groups(new_computed_blocks, num_local_computed_tokens)
        shared = list(new_computed_blocks)
        sources: list[tuple[Group, KVCacheBlock]] = []
        for group in copied:
            *shared[group.id], source = new_computed_blocks[group.id]
            sources.append((group, source))
        # Before anything is allocated: of a tail that external tokens leave behind, nobody holds
        # the blocks.
        tail = self._tail_of_hit(new_computed_blocks, num_local_computed_tokens)
        self.block_pool.touch([source for _, source in sources])
        super().allocate_new_computed_blocks(
            request_id, tuple(shared), num_local_computed_tokens, num_external_computed_tokens
        )
        self.stats.partial_hits += bool(sources)
        for group, source in sources:
            (private,) = self.block_pool.get_new_blocks(1)
            group.manager.req_to_blocks[request_id].append(private)
            self._copies.queue(request_id, source, private)
        if num_local_computed_tokens:
            self._start_behind_hit(request_id, num_local_computed_tokens, tail)

    def _tail_of_hit(self, blocks: Blocks, hit: int) -> list[TailBlock]:
        """Return what a hit rests on in the groups that forget."""
        tail: list[TailBlock] = []
        for group in self._retained:
            for ordinal in group.tail(hit):
                block = blocks[group.id][ordinal]
                assert block.block_hash is not None, "a hit rests on cached blocks"
                tail.append(TailBlock(block, block.block_hash, ordinal * group.block_tokens))
        return tail

    def _start_behind_hit(self, request_id: str, hit: int, tail: Sequence[TailBlock]) -> None:
        record = self._record(request_id)
        record.passed = record.cached = hit
        for group in self._retained:
            record.freed[group.id] = group.tail(hit).start
        self._tails.lend(record, hit, tail)
        for group in self._downward_closed:
            if group.ends_inside:
                # The granules of a copied block are entered anew, for the copy.
                start = align_down(hit, group.block_tokens)
                record.granules[group.id] = start // self.hash_block_size

    def allocate_new_blocks(
        self,
        request_id: str,
        num_tokens: int,
        num_tokens_main_model: int,
        num_encoder_tokens: int = 0,
    ) -> tuple[list[KVCacheBlock], ...]:
        """Make room for ``num_tokens`` tokens; see vLLM's base class."""
        record = self._records.get(request_id)
        if record is None or not self._foresees:
            return super().allocate_new_blocks(
                request_id, num_tokens, num_tokens_main_model, num_encoder_tokens
            )
        short = self._short_groups(record, request_id, num_tokens)
        if not short:
            return self._no_blocks
        new_blocks: tuple[list[KVCacheBlock], ...] = tuple([] for _ in self._groups)
        for group in short:
            new_blocks[group.id].extend(
                group.manager.allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
            )
        self._sparse_state.add_spares(request_id, new_blocks, num_tokens_main_model)
        record.capacity = min(
            len(group.manager.req_to_blocks[request_id]) * group.block_tokens
            for group in self._groups
        )
        return new_blocks

    def take_block_copies(self) -> list[KVCacheBlockCopy] | None:
        """Return the copies that the step just scheduled must make first, ``None`` if none."""
        copies = self._copies.take() if self._changes_caching else None
        if copies is not None:
            self.stats.copied_blocks += len(copies)
        return copies

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
        """Count a request that is scheduled for the first time, if it looked for a hit at all."""
        if record.hit is not None and not request.num_preemptions:
            self.stats.note_start(
                request.num_prompt_tokens, record.hit, missed_junction=record.missed_junction
            )

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
        """Take back what a request entered in the step being scheduled.

        Called when it is preempted: its part of the step will not run, so nobody will ever write
        what the blocks' keys promise. With nothing switched on nothing is remembered and nothing
        withdrawn, as in stock vLLM.
        """
        if not self._changes_caching:
            return
        self._unwritten_granules.forget(request_id)
        for group, ordinals in self._entered_this_step.pop(request_id, ()):
            blocks = group.manager.req_to_blocks[request_id]
            self.block_pool.evict_blocks({blocks[ordinal].block_id for ordinal in ordinals})

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
        self._copies.release_dispatched()
        self._sparse_state.release_spares()
        self._unwritten_granules.enter_all()
        self._entered_this_step.clear()

    # Freeing

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Free the blocks that every window has left behind; see the base class.

        A boundary passed by drafts is dealt with once they are accepted: until then its tail is
        held as well.
        """
        record = self._records.get(request_id)
        if record is None:
            super().remove_skipped_blocks(request_id, total_computed_tokens)
            return
        confirmed = max(total_computed_tokens - self._num_draft_tokens, 0)
        if confirmed < record.next_free:
            return
        record.next_free = _NEVER
        left: list[tuple[int, KVCacheBlock]] = []
        for group in self._windowed:
            if group.is_retained:
                left += self._leave_behind(group, record, request_id, confirmed)
            else:
                group.manager.remove_skipped_blocks(request_id, confirmed)
                record.next_free = 0
        self._free_deep_first(left)

    def _leave_behind(
        self, group: Group, record: RequestRecord, request_id: str, num_tokens: int
    ) -> list[tuple[int, KVCacheBlock]]:
        """Replace what the window has left by null blocks; return it with its first tokens."""
        first = record.freed.get(group.id, 0)
        skipped = max((num_tokens - group.window + 1) // group.block_tokens, first)
        next_free = (skipped + 1) * group.block_tokens + group.window - 1
        record.next_free = min(record.next_free, next_free)
        blocks = group.manager.req_to_blocks.get(request_id, [])
        end = min(skipped, len(blocks))
        if first >= end:
            return []
        null_block = self.block_pool.null_block
        left = [
            (ordinal * group.block_tokens, block)
            for ordinal, block in enumerate(blocks[first:end], first)
            if block is not null_block
        ]
        blocks[first:end] = [null_block] * (end - first)
        record.freed[group.id] = end
        return left

    def free(self, request_id: str) -> None:
        """Free a request's blocks, deep ones first over all groups, and refresh what it keeps.

        A hit needs every group, so the groups' chains have to shrink together: were one group
        freed after another, pressure would first empty one of them and leave the rest useless.
        """
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
        held: list[tuple[int, KVCacheBlock]] = []
        null_block = pool.null_block
        for entry in self._tails.finish(record) if record is not None else ():
            if entry.block.ref_cnt == 0:
                pool.refresh(entry.block)
                held.append((entry.start_token, entry.block))
        for group in self._groups:
            blocks = group.manager.req_to_blocks.pop(request_id, [])
            first = record.freed.get(group.id, 0) if record is not None else 0
            tokens = group.block_tokens
            held += [
                (ordinal * tokens, block)
                for ordinal, block in enumerate(blocks[first:], first)
                if block is not null_block
            ]
            group.manager.free(request_id)
        self._free_deep_first(held)

    def _free_deep_first(self, blocks: list[tuple[int, KVCacheBlock]]) -> None:
        """Free blocks, given with their first tokens."""
        if blocks:
            blocks.sort(key=itemgetter(0), reverse=True)
            self.block_pool.free_blocks([block for _, block in blocks])

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
