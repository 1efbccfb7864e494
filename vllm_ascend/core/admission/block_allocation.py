# SPDX-License-Identifier: Apache-2.0
"""Memory for requests: the blocks of a hit, the copies it takes, and what is needed behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.admission.request_footprint import RequestFootprint
from vllm_ascend.core.layout.groups import Group, Groups
from vllm_ascend.core.lookup.hit_search import Blocks
from vllm_ascend.core.lookup.partial_hits import PartialHits, copied_groups
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.retention.request_record import RequestRecord
from vllm_ascend.core.retention.sparse_state import SparseState


class BlockAllocation:
    """Lets requests in behind their hits, and makes room for their next tokens.

    Every running request asks in every step, and mostly needs nothing: its record says for how
    many tokens all groups have blocks.
    """

    def __init__(
        self,
        groups: Groups,
        plan: CachePlan,
        footprint: RequestFootprint,
        records: Mapping[str, RequestRecord],
        sparse_state: SparseState,
        partial_hits: PartialHits,
    ) -> None:
        self._groups, self._footprint, self._records = groups, footprint, records
        self._sparse_state, self._partial_hits = sparse_state, partial_hits
        self._max_model_len = plan.max_model_len
        self._terms = plan.terms
        self._num_draft_tokens = plan.facts.num_draft_tokens
        self._no_blocks: tuple[list[KVCacheBlock], ...] = tuple([] for _ in groups.all)
        # Groups of other kinds (Mamba, chunked local) know themselves what they need in a step.
        self._knows_needs = len(groups.prefix) + len(groups.retained) == len(groups.all)

    def get_num_blocks_to_allocate(
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
        """Return the blocks that a request still needs; see vLLM's coordinator.

        A hit that ends inside a block needs one more for the copy. Its blocks say where it ends, so
        nothing of what later releases have ``told`` is needed.

        vLLM caps a windowed group's blocks counted from the request's first token, and then
        deducts those in front of the window: behind a long hit nothing is left, the request is let
        in without memory for its next chunk, and preempts itself over and over. Here the cap bounds
        what is needed behind the hit.
        """
        record = self._records.get(request_id)
        if record is not None and record.capacity and not apply_admission_cap:
            if num_tokens <= record.capacity:  # as in most steps
                return 0
            return sum(
                self._terms.blocks_to_allocate(
                    group.manager,
                    request_id,
                    num_tokens,
                    (),
                    total_computed_tokens,
                    num_tokens_main_model,
                )
                for group in self._short_groups(request_id, num_tokens)
            )
        num_slots = num_tokens
        if apply_admission_cap:
            # vLLM lets requests in without the slots of drafts; they would preempt themselves.
            num_slots += self._num_draft_tokens
        num_slots = min(num_slots, self._max_model_len)
        need = len(copied_groups(self._groups.prefix, new_computed_blocks, total_computed_tokens))
        for group in self._groups.all:
            room = None
            if apply_admission_cap:
                room = self._most_new_blocks(group, record, request_id, num_tokens)
            if room is not None and self._sparse_state.is_sparse(group):
                need += room  # which blocks will be real depends on how the prompt is cut
                continue
            blocks = self._terms.blocks_to_allocate(
                group.manager,
                request_id,
                num_slots,
                new_computed_blocks[group.id],
                total_computed_tokens,
                num_tokens_main_model,
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
        most = self._footprint.blocks(group.id, num_tokens, may_resume=resumes)
        if most is None:
            most = getattr(group.manager, self._terms.admission_cap)
        # What a connector has loaded is held already, and given back as the window moves on.
        held = group.manager.req_to_blocks.get(request_id, ())
        return None if most is None else max(most - sum(not block.is_null for block in held), 0)

    def _short_groups(self, request_id: str, num_tokens: int) -> Sequence[Group]:
        """Return the groups in which a running request has fewer blocks than it needs."""
        return [
            group
            for group in self._groups.all
            if len(group.manager.req_to_blocks[request_id]) * group.block_tokens < num_tokens
        ]

    def take_hit(
        self, request_id: str, hit_blocks: Blocks, num_local_tokens: int, num_external_tokens: int
    ) -> int:
        """Give a request its hit's blocks, copies of those that it ends inside of, and room.

        Returns how many blocks are copied.
        """
        shared = list(hit_blocks)
        sources: list[tuple[Group, KVCacheBlock]] = []
        for group in copied_groups(self._groups.prefix, hit_blocks, num_local_tokens):
            *shared[group.id], source = hit_blocks[group.id]
            sources.append((group, source))
        self._partial_hits.pool.touch([source for _, source in sources])
        for group in self._groups.all:
            self._terms.take_computed_blocks(
                group.manager,
                request_id,
                shared[group.id],
                num_local_tokens,
                num_external_tokens,
            )
        self._partial_hits.copy(request_id, sources, num_local_tokens)
        return len(sources)

    def allocate_new_blocks(
        self,
        request_id: str,
        num_tokens: int,
        num_tokens_main_model: int,
        num_encoder_tokens: int = 0,
    ) -> tuple[list[KVCacheBlock], ...]:
        """Make room for ``num_tokens`` tokens; see vLLM's coordinator."""
        record = self._records.get(request_id)
        if record is None or not self._knows_needs:
            return tuple(
                group.manager.allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
                for group in self._groups.all
            )
        if num_tokens <= record.capacity:
            return self._no_blocks
        short = self._short_groups(request_id, num_tokens)
        new_blocks: tuple[list[KVCacheBlock], ...] = tuple([] for _ in self._groups.all)
        for group in short:
            new_blocks[group.id].extend(
                group.manager.allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
            )
        self._sparse_state.add_spares(request_id, new_blocks, num_tokens_main_model)
        record.capacity = min(
            len(group.manager.req_to_blocks[request_id]) * group.block_tokens
            for group in self._groups.all
        )
        return new_blocks
