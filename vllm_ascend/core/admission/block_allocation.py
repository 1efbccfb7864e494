# SPDX-License-Identifier: Apache-2.0
"""Memory for requests: the blocks of a hit, the copies it takes, and what is needed behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.admission.hit_blocks import (
    Blocks,
    blocks_for_next_chunk,
    copied_groups,
    tail_of_hit,
)
from vllm_ascend.core.admission.request_memory import tails_interval
from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.lookup.copy_queue import BlockCopies, KVCacheBlockCopy
from vllm_ascend.core.lookup.request_lookup import RequestLookupCoordinator
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.boundaries import align_down
from vllm_ascend.core.retention.request_record import RequestRecord, TailBlock
from vllm_ascend.core.retention.sparse_state import SparseState
from vllm_ascend.core.retention.tail_cache import TailCache


class AllocatingCoordinator(RequestLookupCoordinator):
    """Lets requests in behind their hits, and makes room for their next tokens.

    For the arguments see the base class.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._no_blocks: tuple[list[KVCacheBlock], ...] = tuple([] for _ in self._groups)
        if not self._changes_caching:
            return
        pool = cast(AscendBlockPool, self.block_pool)
        self._copies = BlockCopies(pool, until_confirmed=self._facts.has_connector)
        pool.before_reset = self._copies.prepare_reset
        self._retained = [group for group in self._groups if group.is_retained]
        # Groups of other kinds (Mamba, chunked local) know themselves what they need in a step.
        self._foresees = all(g.is_downward_closed or g.is_retained for g in self._groups)
        # So far a step may start before, or commit behind, what the scheduler counts: drafts of the
        # step in flight may be rejected, and those of one step pass a boundary together.
        self._num_draft_tokens = self._facts.num_draft_tokens + self._facts.num_unconfirmed_tokens
        pins = self._config.pin_swa_tokens
        is_dense = self.local_kv_retention_interval is None
        self._tails = TailCache(
            pool,
            self._retained,
            alignment=self.lcm_block_size,
            interval=tails_interval(self._config, self.local_kv_retention_interval),
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

        A hit that ends inside a block needs one more for the copy.
        """
        record = self._records.get(request_id)
        if record is not None and record.capacity and not apply_admission_cap:
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

        # vLLM lets requests in without the slots of drafts; they would preempt themselves.
        num_slots = self._facts.num_draft_tokens if apply_admission_cap else 0
        need = sum(
            blocks_for_next_chunk(
                group,
                request_id,
                min(num_tokens + num_slots, self.max_model_len),
                new_computed_blocks[group.id],
                total_computed_tokens,
                num_tokens_main_model,
                most=self._most_blocks(group, request_id, num_tokens)
                if apply_admission_cap
                else None,
                is_sparse=self._sparse_state.is_sparse(group),
            )
            for group in self._groups
        )
        return need + len(
            copied_groups(self._downward_closed, new_computed_blocks, total_computed_tokens)
        )

    def _most_blocks(self, group: Group, request_id: str, num_tokens: int) -> int | None:
        """Return the most blocks that a request holds of a group; ``None``: nothing bounds it."""
        if group.is_downward_closed:
            return None  # it holds what it needs
        record = self._records.get(request_id)
        request = None if record is None else record.request
        # Should it be preempted, it is let in anew, with the tokens of its answer.
        resumes = request is None or num_tokens > request.num_prompt_tokens
        most = self.request_footprint.blocks(group.id, num_tokens, may_resume=resumes)
        return group.manager._max_admission_blocks_per_request if most is None else most

    def num_blocks_held(self, group_id: int, request_id: str) -> int:
        """Return the blocks that a request cannot do without, of those that it holds in a group."""
        blocks = self.single_type_managers[group_id].req_to_blocks.get(request_id, ())
        spares = self._sparse_state.num_spares(group_id, request_id) if self._changes_caching else 0
        return sum(not block.is_null for block in blocks) - spares

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

    def allocate_new_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Blocks,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        """Take a hit's blocks; a block that it ends inside is replaced by a private copy.

        Everything is referenced before anything is allocated, so that no allocation can take what
        the same hit rests on. vLLM goes through the groups one by one: what the first allocates
        for external tokens could be what the second is about to reference.
        """
        num_tokens = num_local_computed_tokens + num_external_computed_tokens
        kept: list[KVCacheBlock] = []
        if num_external_computed_tokens:
            for group in self._groups:
                skipped = group.manager.get_num_skipped_tokens(num_tokens) // group.block_tokens
                kept += new_computed_blocks[group.id][skipped:]
        self.block_pool.touch(kept)
        self._take_computed_blocks(
            request_id,
            new_computed_blocks,
            num_local_computed_tokens,
            num_external_computed_tokens,
        )
        self.block_pool.free_blocks(kept)

    def _take_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Blocks,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        if not self._changes_caching:
            super().allocate_new_computed_blocks(
                request_id,
                new_computed_blocks,
                num_local_computed_tokens,
                num_external_computed_tokens,
            )
            return
        copied = copied_groups(
            self._downward_closed, new_computed_blocks, num_local_computed_tokens
        )
        shared = list(new_computed_blocks)
        sources: list[tuple[Group, KVCacheBlock]] = []
        for group in copied:
            *shared[group.id], source = new_computed_blocks[group.id]
            sources.append((group, source))
        # Before anything is allocated: of a tail that external tokens leave behind, nobody holds
        # the blocks.
        tail = tail_of_hit(self._retained, new_computed_blocks, num_local_computed_tokens)
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

    def confirm_block_copies(self, copies: list[KVCacheBlockCopy]) -> None:
        """The step that was told these copies, as they were returned above, has run."""
        if self._changes_caching:
            self._copies.confirm(copies)
