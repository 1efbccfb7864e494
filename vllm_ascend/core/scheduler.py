# SPDX-License-Identifier: Apache-2.0
"""A scheduler with this project's coordinator: what it must tell it, and what it must ask.

:class:`CachingScheduler` is put over whatever class was chosen, vLLM's or vllm-ascend's, but not
where the coordinator is vLLM's own. Its methods call ``super()``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import KVEventBatch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus, StreamingUpdate

from vllm_ascend.core.admission.waiting_queues import (
    let_holders_go_first,
    queue_of_holders,
    waiting_queues,
)
from vllm_ascend.core.connectors.connector_rules import IS_A_CACHE, blocks_of_caches
from vllm_ascend.core.connectors.failed_loads import blocks_to_evict, lost_blocks
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.kv_cache_manager import put_over
from vllm_ascend.core.layout.specs import group_specs, tokens_per_block
from vllm_ascend.core.loads_under_reset import (
    frees_are_delayed,
    give_up_loads,
    is_loaded,
    leaving_in_use,
    start_over,
)
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
else:
    # Of the same layout, so that a scheduler can be given another class when it has been built.
    from vllm.v1.core.sched.interface import SchedulerInterface as Scheduler

logger = logging.getLogger("vllm.vllm_ascend.scheduler")

_TIER_IS_LEFT = (
    "prefix cache: this reset leaves the tier as it is. After other weights, or another adapter "
    "under an old name, reset both: POST /reset_prefix_cache?reset_external=true"
)
# Steps that only wait for a load leave Python to its threads; vLLM 0.20.2 does not.
_YIELD_S = 0.001


def with_caching(scheduler: Scheduler) -> None:
    """Put :class:`CachingScheduler` over the class of a scheduler with this project's coordinator.

    Whoever chose that class.
    """
    ours: Any = CachingScheduler
    scheduler.__class__ = put_over(scheduler.__class__, ours)


def our_coordinator(scheduler: Scheduler) -> AscendHybridKVCacheCoordinator | None:
    """Return the project's coordinator where it is in force; all else is left as vLLM has it."""
    coordinator = scheduler.kv_cache_manager.coordinator
    return coordinator if isinstance(coordinator, AscendHybridKVCacheCoordinator) else None


class CachingScheduler(Scheduler):
    """What a scheduler does beside vLLM's own where this project's coordinator is in force."""

    __slots__ = ()

    @property
    def _coordinator(self) -> AscendHybridKVCacheCoordinator:
        return self.kv_cache_manager.coordinator

    def add_request(self, request: Request) -> None:
        """A step is not to wait until the garbage collector has walked millions of tokens."""
        super().add_request(request)
        self._coordinator.new_prompts.added(request.num_prompt_tokens)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """What a running request has entered is never written if a scheduler frees it meanwhile.

        vllm-ascend's recompute scheduler does so on a decode node. Where memory is short, those
        that wait are put into order first, if that is asked for.
        """
        if self._coordinator.plan.terms.holders_go_first:
            let_holders_go_first(self)
        if (waiting_order := self._coordinator.waiting_order) is not None:
            waiting_order.put(self)
        with self._coordinator.frees_withdraw():
            output = super().schedule(*args, **kwargs)
        if waiting_order is not None:
            waiting_order.share.step_ends()
        return output

    def _handle_invalid_blocks(
        self, invalid_block_ids: set[int], *args: Any, **kwargs: Any
    ) -> set[str]:
        """With several KV cache groups a failed load ends the engine.

        Fail or restart the requests that rest on blocks which a connector could not load.

        vLLM cuts a request back to its last valid block. With windows that is no place to resume
        at: those behind it are gone. So the request starts anew, with whatever it hits.
        """
        coordinator, lost = self._coordinator, lost_blocks(invalid_block_ids)
        is_affected = coordinator.confirmed_steps.is_affected

        def affected(requests: list[Request]) -> list[Request]:
            return [r for r in requests if is_affected(r.request_id, lost)]

        loading = affected(
            [r for r in queue_of_holders(self) if r.status == RequestStatus.WAITING_FOR_REMOTE_KVS]
        )
        running, preempted = affected(self.running), coordinator.ledger.preempted_and_lost
        _evict_behind(self, running, lost)
        if not self.recompute_kv_load_failures:
            return {request.request_id for request in (*loading, *running, *preempted)}
        for request in loading:
            request.num_computed_tokens = 0
            coordinator.plan.terms.forget_prefill(self, request)
            self.failed_recving_kv_req_ids.add(request.request_id)
        for request in reversed(running):
            restart(self, request)
        for request in preempted:
            if request.status == RequestStatus.PREEMPTED:  # nothing else of it is in flight
                request.num_output_placeholders = 0
        return {request.request_id for request in (*running, *preempted)}

    def _select_waiting_queue_for_scheduling(self) -> RequestQueue | None:
        """A failed load may wait for ever for memory of loaded requests behind it.

        Let a request whose blocks have been loaded go first where nothing runs.

        It holds memory that a request in front of it may be waiting for, for ever.
        """
        chosen = super()._select_waiting_queue_for_scheduling()
        if self.running or not self.skipped_waiting or chosen is None:
            return chosen
        is_here = partial(is_loaded, self)
        return self._coordinator.loaded_first.choose(chosen, self.skipped_waiting, is_here)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """A request's entries in the step of its preemption are never written."""
        with self._coordinator.preempting(request.request_id):
            super()._preempt_request(request, *args, **kwargs)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        """The one call that every scheduler makes on its output."""
        coordinator = self._coordinator
        if copies := coordinator.take_block_copies():
            scheduler_output.kv_cache_block_copies = copies
        coordinator.step_is_dispatched(scheduler_output)
        if not (self.running or scheduler_output.num_scheduled_tokens):
            give_back_blocks(self)
            if frees_are_delayed(self):
                time.sleep(_YIELD_S)
        super()._update_after_schedule(scheduler_output)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Holds a copy's source until the step has run, and hides rows until loaded."""
        coordinator = self._coordinator
        reported = model_runner_output.kv_connector_output
        lost = lost_blocks(reported.invalid_block_ids) if reported is not None else set()
        coordinator.confirmed_steps.has_run(scheduler_output, lost)
        for request_id in coordinator.ledger.take_restarted():
            # vLLM would take the rejected ones off the tokens that are computed since.
            scheduler_output.scheduled_spec_decode_tokens.pop(request_id, None)
        with _cache_misses_are_computed(self, lost):
            outputs = super().update_from_output(scheduler_output, model_runner_output)
        for session in coordinator.ledger.take_moved_on():
            _let_wait(self, session)
        return outputs

    def _update_request_as_session(self, session: Request, update: StreamingUpdate) -> None:
        """vLLM keeps the hash of a token that a session drops."""
        has_new_items = bool(update.mm_features)
        with self._coordinator.session_continues(session, has_new_items=has_new_items):
            super()._update_request_as_session(session, update)

    def has_finished_requests(self) -> bool:
        """An engine that is paused or idle steps until loads of aborted requests have ended."""
        return super().has_finished_requests() or frees_are_delayed(self)

    def reset_prefix_cache(
        self,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> bool:
        """Loads under way do not keep a cache from being reset, and routers hear of it at once."""
        pool = self.kv_cache_manager.block_pool
        given_up: Set[int] = set()
        if reset_running_requests and self.connector is not None:
            given_up = give_up_loads(self)
        with leaving_in_use(pool, given_up):
            is_reset = super().reset_prefix_cache(
                reset_running_requests, reset_connector, *args, **kwargs
            )
        if not reset_connector and self._coordinator.plan.facts.connector_takes(IS_A_CACHE):
            logger.info(_TIER_IS_LEFT)
        if isinstance(pool, AscendBlockPool) and (events := self.kv_cache_manager.take_events()):
            self.kv_event_publisher.publish(KVEventBatch(ts=time.time(), events=events))
        return is_reset

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """Every scheduler makes a step's statistics there."""
        stats = super().make_stats(*args, **kwargs)
        if stats is not None:
            stats.ascend_prefix_cache = self._coordinator.take_stats()
        return stats


def _evict_behind(scheduler: Scheduler, requests: list[Request], lost: Set[int]) -> None:
    """Nothing that was computed behind an invalid block may be hit."""
    manager = scheduler.kv_cache_manager
    block_tokens = [tokens_per_block(spec) for spec in group_specs(scheduler.kv_cache_config)]
    for request in requests:
        manager.coordinator.lose(request.request_id)
        tables = manager.get_block_ids(request.request_id)
        manager.evict_blocks(blocks_to_evict(tables, block_tokens, lost))


def restart(scheduler: Scheduler, request: Request) -> None:
    """Put a running request back, as vLLM does when it resets the cache under running requests."""
    coordinator = scheduler.kv_cache_manager.coordinator
    terms, ledger = coordinator.plan.terms, coordinator.ledger
    scheduler.running.remove(request)
    scheduler._preempt_request(request, time.monotonic(), **terms.forget_in_flight)
    # Not before: over a checkout it is a subclass of what vllm-ascend puts in Scheduler's place.
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    in_flight = ledger.is_in_flight(request.request_id)  # none is behind a step before a pause
    # Asynchronous: the step after the one that failed has been dispatched, and will sample.
    if isinstance(scheduler, AsyncScheduler) and in_flight and request.num_output_placeholders:
        terms.discard_next_output(request)
        ledger.begins_anew(request.request_id)
    request.num_output_placeholders = 0
    scheduler.prev_step_scheduled_req_ids.discard(request.request_id)


def give_back_blocks(scheduler: Scheduler) -> None:
    """Take the blocks of a waiting request back if nothing could be scheduled for want of memory.

    Requests that have loaded blocks, and streaming sessions with more input, hold memory while they
    wait. If each of them needs what the others hold, nothing would ever be scheduled again. The one
    that came last is computed or loaded again.
    """
    terms = scheduler.kv_cache_manager.coordinator.plan.terms
    if scheduler.pause_state.name not in terms.holders_run_while:
        return
    holders = []
    for request in chain(*waiting_queues(scheduler)):
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            if not is_loaded(scheduler, request):
                return  # what arrives may be let in
        elif is_loaded(scheduler, request):
            holders.append(request)
    if holders:
        last = max(holders, key=lambda r: (r.priority, r.arrival_time))
        start_over(scheduler, last)


@contextmanager
def _cache_misses_are_computed(scheduler: Scheduler, lost: Set[int]) -> Iterator[None]:
    """Within, requests that rest on lost blocks are computed if a cache should have brought any.

    ``kv_load_failure_policy`` is for what another engine hands over. A prompt that happened to be
    in a cache must not fail for it.
    """
    told = scheduler.recompute_kv_load_failures
    if lost and not told and not lost.isdisjoint(blocks_of_caches(scheduler.connector)):
        scheduler.recompute_kv_load_failures = True
    try:
        yield
    finally:
        scheduler.recompute_kv_load_failures = told


def _let_wait(scheduler: Scheduler, session: Request) -> None:
    """Put a session that has new input into the queue if it is in none.

    vLLM puts a session there whose turn ends. If it was preempted in a step scheduled since, vLLM
    takes it out again with the requests that have ended, and it would wait for ever.
    """
    queues = waiting_queues(scheduler)
    is_ready = session.status == RequestStatus.WAITING
    if is_ready and not any(session is other for queue in queues for other in queue):
        scheduler._enqueue_waiting_request(session)
