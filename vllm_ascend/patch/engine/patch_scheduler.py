# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/sched/scheduler.py``: what it works with, block copies out, failed loads."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from functools import partial

from vllm.distributed.kv_events import KVEventBatch
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus, StreamingUpdate

from vllm_ascend.core.connectors.connector_rules import (
    BRINGS_TAILS,
    ConnectorQuery,
    bind_kv_cache_manager,
    blocks_of_caches,
    declared,
    least_gain,
)
from vllm_ascend.core.connectors.failed_loads import blocks_to_evict, lost_blocks
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.layout.specs import group_specs, tokens_per_block
from vllm_ascend.core.plan.scheduler_facts import building_scheduler, facts_of
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.patch.engine.loads_under_reset import (
    frees_are_delayed,
    give_up_loads,
    is_loaded,
    leaving_in_use,
    start_over,
)
from vllm_ascend.patch.features import (
    CONNECTORS,
    COORDINATOR,
    PARTIAL_HITS,
    SESSIONS,
    UNWRITTEN,
)
from vllm_ascend.patch.table import Add, Patch, changes
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import running_release

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_OUTPUT = "vllm.v1.core.sched.output:SchedulerOutput"
_DELAYED = {
    **CONNECTORS,
    "upstream": "none: vLLM 0.23.0 does it",
    "remove_when": "vllm>=0.23",
    # It came with the same release.
    "superseded_by": f"{_SCHEDULER}._inflight_prefill_reserved_blocks",
}
# Steps that only wait for a load leave Python to its threads; vLLM 0.20.2 does not.
_YIELD_S = 0.001


def our_coordinator(scheduler: Scheduler) -> AscendHybridKVCacheCoordinator | None:
    """Return the project's coordinator where it is in force; all else is left as vLLM has it."""
    coordinator = scheduler.kv_cache_manager.coordinator
    return coordinator if isinstance(coordinator, AscendHybridKVCacheCoordinator) else None


@changes(f"{_SCHEDULER}.__init__", COORDINATOR)
def wrap_init(self: Scheduler, *args, original: Callable, **kwargs) -> None:
    """The KV cache manager is not told of drafts, connectors or (0.20.2) scheduler_block_size."""
    arguments = inspect.signature(original).bind(self, *args, **kwargs).arguments
    config = load_config()
    with building_scheduler(
        block_size=arguments["block_size"],
        # vLLM asks for the finished requests exactly where its front end balances ranks.
        tells_front_end=bool(config.dp_routing and arguments.get("include_finished_set")),
        **facts_of(arguments["vllm_config"], config, running_release()),
    ):
        original(self, *args, **kwargs)
    coordinator = our_coordinator(self)
    if coordinator is not None:
        manager = self.kv_cache_manager
        if drafts := running_release().draft_event_metadata(manager.num_kv_cache_groups):
            manager.kv_cache_event_metadata += drafts
    bind_kv_cache_manager(self.connector, self.kv_cache_manager)
    if self.connector is not None and coordinator is not None:
        transfer = arguments["vllm_config"].kv_transfer_config
        query = ConnectorQuery(
            self.connector.get_num_new_matched_tokens,
            least_gain(transfer),
            brings_tails=BRINGS_TAILS in declared(transfer),
        )
        coordinator.ask_connector(query)
        self.connector.get_num_new_matched_tokens = query.get_num_new_matched_tokens


@changes(f"{_SCHEDULER}._handle_invalid_blocks", CONNECTORS)
def wrap_handle_invalid_blocks(
    self: Scheduler,
    invalid_block_ids: set[int],
    num_scheduled_tokens: dict[str, int],
    *,
    original: Callable,
) -> set[str]:
    """With several KV cache groups a failed load ends the engine.

    Fail or restart the requests that rest on blocks which a connector could not load.

    vLLM cuts a request back to its last valid block. With windows that is no place to resume
    at: those behind it are gone. So the request starts anew, with whatever it hits.
    """
    coordinator = our_coordinator(self)
    if coordinator is None:
        return original(self, invalid_block_ids, num_scheduled_tokens)
    lost = lost_blocks(invalid_block_ids)

    def affected(requests: list[Request]) -> list[Request]:
        return [r for r in requests if coordinator.is_affected(r.request_id, lost)]

    loading = affected(
        [r for r in self.skipped_waiting if r.status == RequestStatus.WAITING_FOR_REMOTE_KVS]
    )
    running, preempted = affected(self.running), coordinator.ledger.preempted_and_lost
    _evict_behind(self, running, lost)
    if not self.recompute_kv_load_failures:
        return {request.request_id for request in (*loading, *running, *preempted)}
    for request in loading:
        request.num_computed_tokens = 0
        running_release().forget_prefill(self, request)
        self.failed_recving_kv_req_ids.add(request.request_id)
    for request in reversed(running):
        _restart(self, request)
    for request in preempted:
        if request.status == RequestStatus.PREEMPTED:  # nothing else of it is in flight
            request.num_output_placeholders = 0
    return {request.request_id for request in (*running, *preempted)}


def _evict_behind(scheduler: Scheduler, requests: list[Request], lost: Set[int]) -> None:
    """Nothing that was computed behind an invalid block may be hit."""
    manager = scheduler.kv_cache_manager
    block_tokens = [tokens_per_block(spec) for spec in group_specs(scheduler.kv_cache_config)]
    for request in requests:
        manager.coordinator.caching.lose(request.request_id)
        tables = manager.get_block_ids(request.request_id)
        manager.evict_blocks(blocks_to_evict(tables, block_tokens, lost))


def _restart(scheduler: Scheduler, request: Request) -> None:
    """Put a running request back, as vLLM does when it resets the cache under running requests."""
    scheduler.running.remove(request)
    scheduler._preempt_request(request, time.monotonic(), **running_release().forget_in_flight)
    # Not before: over a checkout it is a subclass of what vllm-ascend puts in Scheduler's place.
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    ledger = scheduler.kv_cache_manager.coordinator.ledger
    in_flight = ledger.is_in_flight(request.request_id)  # none is behind a step before a pause
    # Asynchronous: the step after the one that failed has been dispatched, and will sample.
    if isinstance(scheduler, AsyncScheduler) and in_flight and request.num_output_placeholders:
        running_release().discard_next_output(request)
        ledger.begins_anew(request.request_id)
    request.num_output_placeholders = 0
    scheduler.prev_step_scheduled_req_ids.discard(request.request_id)


@changes(f"{_SCHEDULER}._select_waiting_queue_for_scheduling", CONNECTORS)
def wrap_select_waiting_queue(self: Scheduler, *, original: Callable):
    """A failed load may wait for ever for memory of loaded requests behind it.

    Let a request whose blocks have been loaded go first where nothing runs.

    It holds memory that a request in front of it may be waiting for, for ever.
    """
    coordinator = our_coordinator(self)
    chosen = original(self)
    if self.running or not self.skipped_waiting or coordinator is None or chosen is None:
        return chosen
    return coordinator.loaded_first.choose(chosen, self.skipped_waiting, partial(is_loaded, self))


@changes(f"{_SCHEDULER}._preempt_request", UNWRITTEN)
def wrap_preempt_request(
    self: Scheduler, request: Request, *args, original: Callable, **kwargs
) -> None:
    """A request's entries in the step of its preemption are never written."""
    coordinator = our_coordinator(self)
    if coordinator is None:
        original(self, request, *args, **kwargs)
        return
    with coordinator.preempting(request.request_id):
        original(self, request, *args, **kwargs)


@changes(f"{_SCHEDULER}._update_after_schedule", COORDINATOR)
def wrap_update_after_schedule(
    self: Scheduler, scheduler_output: SchedulerOutput, *, original: Callable
) -> None:
    """The one call that every scheduler makes on its output."""
    coordinator = our_coordinator(self)
    if coordinator is not None:
        if copies := coordinator.take_block_copies():
            scheduler_output.kv_cache_block_copies = copies
        coordinator.step_is_dispatched(scheduler_output)
        if not (self.running or scheduler_output.num_scheduled_tokens):
            _give_back_blocks(self)
            if frees_are_delayed(self):
                time.sleep(_YIELD_S)
    original(self, scheduler_output)


def _give_back_blocks(scheduler: Scheduler) -> None:
    """Take the blocks of a waiting request back if nothing could be scheduled for want of memory.

    Requests that have loaded blocks, and streaming sessions with more input, hold memory while they
    wait. If each of them needs what the others hold, nothing would ever be scheduled again. The one
    that came last is computed or loaded again.
    """
    if scheduler.pause_state != PauseState.UNPAUSED:
        return
    holders = []
    for request in (*scheduler.waiting, *scheduler.skipped_waiting):
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            if not is_loaded(scheduler, request):
                return  # what arrives may be let in
        elif is_loaded(scheduler, request):
            holders.append(request)
    if holders:
        last = max(holders, key=lambda r: (r.priority, r.arrival_time))
        start_over(scheduler, last)


@changes(f"{_SCHEDULER}.update_from_output", CONNECTORS)
def wrap_update_from_output(
    self: Scheduler,
    scheduler_output: SchedulerOutput,
    model_runner_output: ModelRunnerOutput,
    *,
    original: Callable,
) -> dict[int, EngineCoreOutputs]:
    """Holds a copy's source until the step has run, and hides rows until loaded."""
    coordinator = our_coordinator(self)
    reported = model_runner_output.kv_connector_output
    lost = lost_blocks(reported.invalid_block_ids) if reported is not None else set()
    if coordinator is not None:
        coordinator.step_has_run(scheduler_output, lost)
        for request_id in coordinator.ledger.take_restarted():
            # vLLM would take the rejected ones off the tokens that are computed since.
            scheduler_output.scheduled_spec_decode_tokens.pop(request_id, None)
    with _cache_misses_are_computed(self, lost):
        outputs = original(self, scheduler_output, model_runner_output)
    if coordinator is not None:
        for session in coordinator.ledger.take_moved_on():
            _let_wait(self, session)
    return outputs


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
    queues = (scheduler.waiting, scheduler.skipped_waiting)
    is_ready = session.status == RequestStatus.WAITING
    if is_ready and not any(session is other for queue in queues for other in queue):
        scheduler._enqueue_waiting_request(session)


@changes(f"{_SCHEDULER}._update_request_as_session", SESSIONS)
def wrap_update_request_as_session(
    self: Scheduler, session: Request, update: StreamingUpdate, *, original: Callable
) -> None:
    """vLLM keeps the hash of a token that a session drops."""
    coordinator = our_coordinator(self)
    if coordinator is None:
        original(self, session, update)
        return
    with coordinator.session_continues(session, has_new_items=bool(update.mm_features)):
        original(self, session, update)


@changes(f"{_SCHEDULER}.has_finished_requests", _DELAYED)
def wrap_has_finished_requests(self: Scheduler, *, original: Callable) -> bool:
    """An engine that is paused or idle steps until loads of aborted requests have ended."""
    return original(self) or (our_coordinator(self) is not None and frees_are_delayed(self))


@changes(f"{_SCHEDULER}.reset_prefix_cache", CONNECTORS)
def wrap_reset_prefix_cache(
    self: Scheduler, reset_running_requests: bool = False, *args, original: Callable, **kwargs
) -> bool:
    """Loads under way do not keep a cache from being reset, and routers hear of it at once."""
    pool, arguments = self.kv_cache_manager.block_pool, (reset_running_requests, *args)
    if our_coordinator(self) is None:
        return original(self, *arguments, **kwargs)
    given_up: Set[int] = set()
    if reset_running_requests and self.connector is not None:
        given_up = give_up_loads(self)
    with leaving_in_use(pool, given_up):
        is_reset = original(self, *arguments, **kwargs)
    if isinstance(pool, AscendBlockPool) and (events := self.kv_cache_manager.take_events()):
        self.kv_event_publisher.publish(KVEventBatch(ts=time.time(), events=events))
    return is_reset


PATCHES: tuple[Patch, ...] = (
    wrap_init,
    wrap_handle_invalid_blocks,
    wrap_select_waiting_queue,
    wrap_preempt_request,
    wrap_update_request_as_session,
    wrap_has_finished_requests,
    wrap_reset_prefix_cache,
    # A default on the class: dataclasses.replace drops what is only on the instance.
    Add(
        target=f"{_OUTPUT}.kv_cache_block_copies",
        replacement=None,
        **PARTIAL_HITS,
        why="Names the pages to copy before the step.",
    ),
    wrap_update_after_schedule,
    wrap_update_from_output,
)
