# SPDX-License-Identifier: Apache-2.0
"""Memory for requests: the blocks of a hit, the copies it takes, and what is needed behind it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.admission.request_footprint import RequestFootprint
from vllm_ascend.core.layout.groups import Blocks, Group, Groups
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.policy.units import Ordinal
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.ledger import Ledger
from vllm_ascend.core.retention.partial_hits import PartialHits, copied_groups
from vllm_ascend.core.retention.request_record import RequestRecord
from vllm_ascend.core.retention.sparse_state import SparseState


class BlockAllocation(KVCacheCoordinator):
    """Lets requests in behind their hits, and makes room for their next tokens.

    Every running request asks in every step, and mostly needs nothing: its record says for how
    many tokens all groups have blocks.
    """

    block_pool: AscendBlockPool
    groups: Groups
    plan: CachePlan
    ledger: Ledger
    request_footprint: RequestFootprint
    sparse_state: SparseState
    partial_hits: PartialHits

    def blocks_needed(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Blocks,
        num_encoder_tokens: int,
        total_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
        **told: int,
    ) -> int:
        """Return the blocks that a request still needs for itself; see vLLM's coordinator.

        The blocks of a hit say where it ends, so nothing of what later releases have ``told`` is
        needed.
        """
        record = self.ledger.records.get(request_id)
        counts = (total_computed_tokens, num_tokens_main_model)
        if record is not None and record.capacity and not apply_admission_cap:
            if num_tokens <= record.capacity:  # as in most steps
                return 0
            return self._running(request_id, num_tokens, *counts)
        return self._admitted(
            record, request_id, num_tokens, new_computed_blocks, *counts, apply_admission_cap
        )

    def _running(
        self, request_id: str, num_tokens: int, num_computed_tokens: int, num_main_tokens: int
    ) -> int:
        """Return the blocks that a running request needs."""
        counts = (num_computed_tokens, num_main_tokens)
        need = self.plan.terms.blocks_to_allocate
        return sum(
            need(group.manager, request_id, num_tokens, (), *counts)
            for group in self._short_groups(request_id, num_tokens)
        )

    def _admitted(
        self,
        record: RequestRecord | None,
        request_id: str,
        num_tokens: int,
        hit_blocks: Blocks,
        num_computed_tokens: int,
        num_main_tokens: int,
        is_capped: bool,
    ) -> int:
        """Return the blocks that a request needs to be let in; one more for a copy.

        vLLM caps a windowed group's blocks counted from the request's first token, and then
        deducts those in front of the window: behind a long hit nothing is left, the request is let
        in without memory for its next chunk, and preempts itself over and over. Here the cap bounds
        what is needed behind the hit.

        Args:
            is_capped: All of its tokens are asked for, of which windows hold a part at a time.
        """
        # vLLM lets requests in without the slots of drafts; they would preempt themselves.
        num_slots = num_tokens + (self.plan.facts.num_draft_tokens if is_capped else 0)
        num_slots = min(num_slots, self.plan.max_model_len)
        counts = (num_computed_tokens, num_main_tokens)
        need = len(copied_groups(self.groups.prefix, hit_blocks, num_computed_tokens))
        for group in self.groups.all:
            room = None
            if is_capped:
                room = self._most_new_blocks(group, record, request_id, num_tokens)
            if room is not None and self.sparse_state.is_sparse(group):
                need += room  # which blocks will be real depends on how the prompt is cut
                continue
            hit = hit_blocks[group.id]
            blocks = self.plan.terms.blocks_to_allocate(
                group.manager, request_id, num_slots, hit, *counts
            )
            need += blocks if room is None else min(blocks, room)
        return need

    def _most_new_blocks(
        self, group: Group, record: RequestRecord | None, request_id: str, num_tokens: int
    ) -> int | None:
        """Return the most blocks of a group that a request takes yet; ``None``: unbounded."""
        if group.is_downward_closed:
            return None  # it holds what it needs
        request = None if record is None else record.request
        # Should it be preempted, it is let in anew, with the tokens of its answer.
        resumes = request is None or num_tokens > request.num_prompt_tokens
        most = self.request_footprint.blocks(group.id, num_tokens, may_resume=resumes)
        if most is None:
            most = getattr(group.manager, self.plan.terms.admission_cap)
        # What a connector has loaded is held already, and given back as the window moves on.
        held = group.manager.req_to_blocks.get(request_id, [])
        num_held = len(held) - held.count(self.block_pool.null_block)
        return None if most is None else max(most - num_held, 0)

    def _short_groups(self, request_id: str, num_tokens: int) -> Sequence[Group]:
        """Return the groups in which a running request has fewer blocks than it needs."""
        return [
            group
            for group in self.groups.all
            if len(group.manager.req_to_blocks[request_id]) * group.block_tokens < num_tokens
        ]

    def take_blocks(
        self, request_id: str, hit_blocks: Blocks, num_local_tokens: int, num_external_tokens: int
    ) -> int:
        """Give a request its hit's blocks, copies of those that it ends inside of, and room.

        Returns how many blocks are copied.
        """
        shared = list(hit_blocks)
        sources: list[tuple[Group, KVCacheBlock]] = []
        for group in copied_groups(self.groups.prefix, hit_blocks, num_local_tokens):
            *shared[group.id], source = hit_blocks[group.id]
            sources.append((group, source))
        self.block_pool.touch([source for _, source in sources])
        for group in self.groups.all:
            self.plan.terms.take_computed_blocks(
                group.manager,
                request_id,
                shared[group.id],
                num_local_tokens,
                num_external_tokens,
            )
        self.partial_hits.copy(request_id, sources, num_local_tokens)
        if num_external_tokens:
            self._note_null_blocks(request_id, num_local_tokens + num_external_tokens)
        return len(sources)

    def _note_null_blocks(self, request_id: str, num_tokens: int) -> None:
        """Note where the null blocks end in front of windows that were loaded.

        Nobody has to walk through them then.
        """
        record, null_block = self.ledger.record(request_id), self.block_pool.null_block
        for group in self.groups.retained:
            table = group.manager.req_to_blocks[request_id]
            skipped = group.manager.get_num_skipped_tokens(num_tokens) // group.block_tokens
            if 0 < skipped <= len(table) and table[skipped - 1] is null_block:
                record.freed[group.id] = Ordinal(skipped)

    @cached_property
    def _no_blocks(self) -> tuple[list[KVCacheBlock], ...]:
        return tuple([] for _ in self.groups.all)

    @cached_property
    def _knows_needs(self) -> bool:
        """Groups of other kinds (Mamba, chunked local) know themselves what they need in a step."""
        groups = self.groups
        return len(groups.prefix) + len(groups.retained) == len(groups.all)

    def allocate_new_blocks(
        self,
        request_id: str,
        num_tokens: int,
        num_tokens_main_model: int,
        num_encoder_tokens: int = 0,
    ) -> tuple[list[KVCacheBlock], ...]:
        """Make room for ``num_tokens`` tokens; see vLLM's coordinator."""
        record = self.ledger.records.get(request_id)
        if record is None or not self._knows_needs:
            return tuple(
                group.manager.allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
                for group in self.groups.all
            )
        if num_tokens <= record.capacity:
            return self._no_blocks
        short = self._short_groups(request_id, num_tokens)
        new_blocks: tuple[list[KVCacheBlock], ...] = tuple([] for _ in self.groups.all)
        for group in short:
            new_blocks[group.id].extend(
                group.manager.allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
            )
        self.sparse_state.add_spares(request_id, new_blocks, num_tokens_main_model)
        record.capacity = min(
            len(group.manager.req_to_blocks[request_id]) * group.block_tokens
            for group in self.groups.all
        )
        return new_blocks
