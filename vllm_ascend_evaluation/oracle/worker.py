# SPDX-License-Identifier: Apache-2.0
"""A worker without a model: it executes scheduler outputs on a shadow memory and checks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from vllm_ascend.core.checks.drafts import DSPARK
from vllm_ascend.core.layout.specs import group_specs, has_rings
from vllm_ascend_evaluation.oracle.contents import digests_of
from vllm_ascend_evaluation.oracle.digests import LOST, STALE, PrefixDigests
from vllm_ascend_evaluation.oracle.drafting import FakeModel
from vllm_ascend_evaluation.oracle.errors import ContentViolation
from vllm_ascend_evaluation.oracle.groups import Drafts, GroupRules, Kind, rules_of_groups
from vllm_ascend_evaluation.oracle.guard import NULL_BLOCK_ID, BlockGuard
from vllm_ascend_evaluation.oracle.mamba_group import MambaGroup
from vllm_ascend_evaluation.oracle.options import OracleOptions
from vllm_ascend_evaluation.oracle.request_state import BlockTable, RequestState, Span
from vllm_ascend_evaluation.oracle.rings import Rings
from vllm_ascend_evaluation.oracle.row_groups import (
    ChunkedGroup,
    RowGroup,
    SlidingGroup,
    StateGroup,
)
from vllm_ascend_evaluation.oracle.shadow_memory import NO_GROUP, Life, ShadowMemory

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler

_POOLED = torch.zeros(1)


class ShadowWorker:
    """Executes `SchedulerOutput`s in dispatch order, as one GPU worker would.

    It learns tokens and block tables from the outputs alone. Every row that the model would
    read is compared with the request's own tokens; every write is checked for its right to the
    block.

    Args:
        scheduler: the real scheduler. Only its configuration, its block pool (for reference
            counts and keys) and the cache salts of its requests are looked at.

    Attributes:
        num_steps: steps executed that computed at least one token.
        num_tokens: tokens computed in them.
    """

    def __init__(self, scheduler: Scheduler, options: OracleOptions | None = None) -> None:
        options = options or OracleOptions()
        config = scheduler.kv_cache_config
        self.num_steps = 0
        self.num_tokens = 0
        self._scheduler = scheduler
        self._is_async = isinstance(scheduler, AsyncScheduler)
        self._num_drafts = scheduler.num_spec_tokens
        drafts = _drafts_of(scheduler)
        rules = rules_of_groups(config.kv_cache_groups, drafts=drafts)
        self._memory = ShadowMemory(config.num_blocks, rules)
        self._guard = BlockGuard(scheduler.kv_cache_manager)
        self._groups = [
            self._make_group(group_id, rule, options) for group_id, rule in enumerate(rules)
        ]
        rings = has_rings(group_specs(config))
        self._rings = Rings(rules, self._num_drafts) if rings else None
        self._writers = [*self._groups, *([self._rings] if self._rings else [])]
        self._model = FakeModel(
            vocabulary=options.vocabulary,
            acceptance=options.acceptance,
            seed=options.seed,
            continuation=options.continuation,
        )
        self._requests: dict[str, RequestState] = {}
        self.last_request_ids: list[str] = []

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Execute one step. Call it right after `schedule()` returned.

        Raises:
            ContentViolation: the step reads or writes what it must not.
        """
        self._update_requests(output)
        spans = [
            self._plan(output, request_id, num_tokens)
            for request_id, num_tokens in output.num_scheduled_tokens.items()
        ]
        for phase in ("before_writes", "write", "after_writes", "write_drafts", "after_drafts"):
            for writer in self._writers:
                getattr(writer, phase)(spans)
        for span in spans:
            self._finish_span(span)
        if spans:
            self.num_steps += 1
            self.num_tokens += output.total_num_scheduled_tokens
        request_ids = list(output.num_scheduled_tokens)
        self.last_request_ids = request_ids
        return ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(request_ids)},
            sampled_token_ids=[span.sampled_token_ids for span in spans],
            pooler_output=[self._pool(span) for span in spans],
        )

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """Drafts for the requests of the last step, for `scheduler.update_draft_token_ids`."""
        if not self._num_drafts or self._is_async:
            return None
        request_ids = [r for r in self.last_request_ids if r in self._requests]
        drafts = [list(self._requests[r].draft_token_ids) for r in request_ids]
        return DraftTokenIds(request_ids, drafts)

    def lose(self, request_id: str) -> None:
        """A load for a request has failed: what it computes is worthless until it starts anew."""
        self._requests[request_id].is_lost = True

    def lost_request_ids(self) -> frozenset[str]:
        """The requests of the last step whose samples are worthless."""
        known = self._requests
        return frozenset(r for r in self.last_request_ids if r in known and known[r].is_lost)

    def check_index(self) -> None:
        """Check that nothing in the index rests on a load that failed. Walks the whole pool.

        Raises:
            ContentViolation: A block is in the index that holds such rows.
        """
        pool = self._scheduler.kv_cache_manager.block_pool
        granules = getattr(pool, "granules", None)
        for block in pool.blocks:
            group_id = self._memory.group_of[block.block_id]
            if group_id == NO_GROUP:
                continue
            rules, num_rows = self._groups[group_id].rules, 0
            if block.block_hash is not None:
                num_rows = rules.rows_per_block
            elif granules is not None:
                num_tokens = len(granules.granules_of(block.block_id)) * pool.hash_block_size
                num_rows = num_tokens // rules.ratio
            if self._memory.holds(block.block_id, num_rows, LOST):
                raise ContentViolation(
                    "left rows of a failed load in the index",
                    request_id=self._memory.writer_name(block.block_id) or "nobody",
                    group_id=group_id,
                    kind=rules.kind.value,
                    block_id=block.block_id,
                )

    def lose_memory(self) -> None:
        """Forget what every row holds, as a worker that gives its KV cache's memory up."""
        self._memory.wipe(range(len(self._memory.owner)))

    def tokens(self, request_id: str) -> list[int]:
        """All tokens of a request that the worker has not been told is finished, a copy."""
        return list(self._requests[request_id].digests.tokens)

    def _make_group(
        self, group_id: int, rules: GroupRules, options: OracleOptions
    ) -> RowGroup | MambaGroup:
        common = (group_id, rules, self._memory, self._guard)
        if rules.kind is Kind.MAMBA:
            return MambaGroup(*common)
        if rules.kind is Kind.STATE:
            return StateGroup(*common, strict_state=options.strict_state)
        classes = {Kind.SLIDING: SlidingGroup, Kind.CHUNKED: ChunkedGroup, Kind.FULL: RowGroup}
        return classes[rules.kind](
            *common,
            # The first of EAGLE's passes covers the step's own positions; DSpark has a single one,
            # behind them.
            lookahead_tokens=max(self._num_drafts - rules.draft_ahead, 0),
            strict_draft=options.strict_draft,
        )

    def _update_requests(self, output: SchedulerOutput) -> None:
        """Take in who came, went and was given which blocks; then zero and copy pages."""
        if self._rings:
            self._rings.take_late(output, self._requests)
        for request_id in output.finished_req_ids:
            self._requests.pop(request_id, None)
        cached = output.scheduled_cached_reqs
        new_ids = {request.req_id for request in output.scheduled_new_reqs}
        self._guard.start_step(self._newcomers(output))
        self._memory.wipe(output.new_block_ids_to_zero or ())
        for request in output.scheduled_new_reqs:
            self._add(request)
        for index in range(cached.num_reqs):
            self._continue(cached, index)
        copies = getattr(output, "kv_cache_block_copies", None) or ()
        for src_block_id, dst_block_id in copies:
            self._memory.copy(src_block_id, dst_block_id)
        if copies:
            for request_id in new_ids | cached.resumed_req_ids:
                self._spoil_behind_hit(self._requests[request_id])
        if self._rings:
            self._rings.start_step(output, self._requests)

    def _newcomers(self, output: SchedulerOutput) -> set[str]:
        """Requests whose look-up may have met blocks that others are given in this step."""
        new_ids = {request.req_id for request in output.scheduled_new_reqs}
        return new_ids | output.scheduled_cached_reqs.resumed_req_ids

    def _add(self, request: NewRequestData) -> None:
        known = self._scheduler.requests.get(request.req_id)
        digests = digests_of(request, cache_salt=known.cache_salt if known else None)
        session = self._requests.get(request.req_id)
        if session is not None and known is not None and known.resumable:
            self._continue_session(session, request, digests)
            return
        life = Life(request.req_id)
        self._requests[request.req_id] = state = RequestState(
            life, digests, [], 0, pools=request.pooling_params is not None
        )
        self._replace_tables(state, request.block_ids, request.num_computed_tokens)

    def _continue_session(
        self, state: RequestState, request: NewRequestData, digests: PrefixDigests
    ) -> None:
        """A streaming session comes again with more input; it has dropped its last sampled token.

        Its blocks are those that it had, but for those that windows have left behind, and new ones.
        If it had to give them back, it begins another life.
        """
        num_kept = request.num_computed_tokens
        if self._gave_blocks_back(state, request):
            state.life, state.digests = Life(request.req_id), digests
            state.draft_token_ids, state.stale_tokens = [], []
            self._replace_tables(state, request.block_ids, num_kept)
            return
        if num_kept > state.num_computed_tokens:
            self._check_progress(state, num_kept)
        if num_kept > len(digests) or digests.tokens[:num_kept] != state.digests.tokens[:num_kept]:
            raise ContentViolation(
                f"goes on behind {num_kept} tokens that are not those it had",
                request_id=state.request_id,
            )
        for group in self._groups:  # drafts behind the token that ended the turn were accepted
            group.spoil(state, num_kept, state.num_computed_tokens)
        state.digests, state.draft_token_ids, state.num_rejected_tokens = digests, [], 0
        state.num_computed_tokens = num_kept
        for group_id, ids in enumerate(request.block_ids):
            table = state.tables[group_id]
            fresh = ids[len(table) :]
            self._give(state, group_id, fresh)
            table.replace(ids)
            if num_kept and self._groups[group_id].rules.drafts is Drafts.NEXT_TOKEN:
                self._mark_stale(state, group_id, num_kept - 1)

    def _gave_blocks_back(self, state: RequestState, request: NewRequestData) -> bool:
        """Whether a session has other blocks than before, or somebody else had them meanwhile."""
        for group_id, (table, ids) in enumerate(zip(state.tables, request.block_ids, strict=True)):
            if _is_another_table(table, ids):
                return True
            size = self._groups[group_id].rules.tokens_per_block
            written = ids[request.num_computed_tokens // size : len(table)]
            owners = (self._memory.owner[i] for i in written if i != NULL_BLOCK_ID)
            if any(owner is not state.life for owner in owners):
                return True
        return False

    def _mark_stale(self, state: RequestState, group_id: int, token: int) -> None:
        """The draft row of a token was computed from the token behind it, which was dropped."""
        size = self._groups[group_id].rules.rows_per_block
        ordinal, row = divmod(token, size)
        block_id = state.tables[group_id].block_ids[ordinal]
        if block_id != NULL_BLOCK_ID:
            self._memory.draft_rows[group_id][block_id, row] = STALE
            self._memory.epoch[block_id] += 1
        if token not in state.stale_tokens:
            state.stale_tokens.append(token)

    def _continue(self, cached: CachedRequestData, index: int) -> None:
        request_id = cached.req_ids[index]
        num_computed_tokens = cached.num_computed_tokens[index]
        block_ids = cached.new_block_ids[index]
        state = self._requests[request_id]
        if request_id not in cached.resumed_req_ids:
            self._check_progress(state, num_computed_tokens)
            for group_id, new_ids in enumerate(block_ids or ()):
                self._give(state, group_id, new_ids)
                state.tables[group_id].extend(new_ids)
            return
        state.life = Life(request_id)
        state.draft_token_ids = []
        state.stale_tokens = []
        self._resume_tokens(state, cached.all_token_ids[request_id])
        self._replace_tables(state, block_ids or (), num_computed_tokens)

    def _resume_tokens(self, state: RequestState, token_ids: list[int]) -> None:
        """Forget sampled tokens that the scheduler threw away with a forced preemption."""
        known = state.digests.tokens
        drops_none = not (self._is_async or state.is_lost)
        state.is_lost = False
        if token_ids != known[: len(token_ids)] or (drops_none and len(token_ids) != len(known)):
            raise ContentViolation(
                f"resumes with {len(token_ids)} tokens that are not the {len(known)} it had",
                request_id=state.request_id,
            )
        state.digests.truncate(len(token_ids))

    def _check_progress(self, state: RequestState, num_computed_tokens: int) -> None:
        """The scheduler's count, which may still include drafts rejected in the last step."""
        ahead = num_computed_tokens - state.num_computed_tokens
        if ahead and not (self._is_async and ahead == state.num_rejected_tokens):
            raise ContentViolation(
                f"goes on at token {num_computed_tokens}, computed are {state.num_computed_tokens}",
                request_id=state.request_id,
            )

    def _replace_tables(
        self, state: RequestState, block_ids: Sequence[Sequence[int]], num_computed_tokens: int
    ) -> None:
        """Begin a life with a hit of `num_computed_tokens`; the blocks behind it are fresh."""
        state.num_computed_tokens = num_computed_tokens
        state.num_rejected_tokens = 0
        state.tables = [BlockTable(ids) for ids in block_ids]
        for group_id, ids in enumerate(block_ids):
            # A block that the hit ends inside is fresh too: a private copy.
            hit_blocks = num_computed_tokens // self._groups[group_id].rules.tokens_per_block
            self._give(state, group_id, ids[hit_blocks:])

    def _spoil_behind_hit(self, state: RequestState) -> None:
        """Rows behind a hit that ends inside a copied block are another request's."""
        for group_id, (group, table) in enumerate(zip(self._groups, state.tables, strict=True)):
            rules = group.rules
            ordinal, inside = divmod(state.num_computed_tokens, rules.tokens_per_block)
            if rules.kind is Kind.FULL and inside and ordinal < len(table):
                block_id = table.block_ids[ordinal]
                self._memory.spoil(block_id, group_id, inside // rules.ratio)

    def _give(self, state: RequestState, group_id: int, block_ids: Sequence[int]) -> None:
        rules = self._groups[group_id].rules
        for block_id in block_ids:
            if block_id == NULL_BLOCK_ID:
                continue
            # Mamba hands a request's own blocks for the states of drafts on to later ordinals.
            moved = rules.kind is Kind.MAMBA and self._memory.owner[block_id] is state.life
            if not moved:
                self._guard.check_given(block_id, group_id, rules.kind, state.request_id)
                self._memory.give(block_id, group_id, state.life)
                if self._rings:
                    self._rings.lose(block_id)

    def _plan(self, output: SchedulerOutput, request_id: str, num_tokens: int) -> Span:
        """Decide what the step computes for a request, and let the model sample."""
        state = self._requests[request_id]
        start = state.num_computed_tokens
        end = start + num_tokens
        drafts = output.scheduled_spec_decode_tokens.get(request_id) or []
        num_real = end - len(drafts)
        span = Span(state, start, end, num_real, num_drafts=len(drafts))
        if num_real > len(state.digests):
            raise ContentViolation(
                f"is to compute tokens [{start}, {num_real}) of {len(state.digests)}",
                request_id=request_id,
            )
        if num_real == len(state.digests) and not state.pools:
            if self._is_async:
                drafts = state.draft_token_ids[: len(drafts)]
            span.sampled_token_ids = self._model.verify(request_id, state.digests, drafts)
            span.num_accepted = len(span.sampled_token_ids) - 1
            span.valid_end += span.num_accepted
        return span

    def _pool(self, span: Span) -> torch.Tensor | None:
        """What an embedding request ends with: anything, once all of its prompt is computed."""
        state = span.state
        return _POOLED if state.pools and span.end == len(state.digests) else None

    def _finish_span(self, span: Span) -> None:
        state = span.state
        state.num_computed_tokens = span.valid_end
        state.num_rejected_tokens = span.end - span.valid_end
        if self._num_drafts and not state.pools:
            state.draft_token_ids = self._model.propose(
                state.request_id, state.digests, self._num_drafts
            )


def _drafts_of(scheduler: Scheduler) -> Drafts | None:
    if not scheduler.use_eagle:
        return None
    is_dspark = scheduler.vllm_config.speculative_config.method == DSPARK
    return Drafts.OWN_TOKEN if is_dspark else Drafts.NEXT_TOKEN


def _is_another_table(table: BlockTable, block_ids: Sequence[int]) -> bool:
    """Whether a table is not an earlier one with more blocks, and with null blocks in front."""
    pairs = zip(table.block_ids, block_ids, strict=False)
    return len(block_ids) < len(table) or any(new not in (old, NULL_BLOCK_ID) for old, new in pairs)
