# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/sched/scheduler.py``: what it works with, block copies out, failed loads."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Set

from vllm.distributed.kv_events import KVEventBatch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from vllm_ascend.core.connectors.connector_rules import ConnectorQuery
from vllm_ascend.core.connectors.failed_loads import blocks_to_evict, is_affected, lost_blocks
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.layout.specs import group_specs, is_windowed, tokens_per_block
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.scheduler_facts import building_scheduler, facts_of
from vllm_ascend.patch.features import (
    CONNECTORS,
    COORDINATOR,
    KV_EVENTS,
    PARTIAL_HITS,
    UNWRITTEN,
)
from vllm_ascend.patch.table import Add, Patch, changes
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import running_release

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_OUTPUT = "vllm.v1.core.sched.output:SchedulerOutput"


def _our_coordinator(scheduler: Scheduler) -> AscendHybridKVCacheCoordinator | None:
    """Return the project's coordinator where it is in force; all else is left as vLLM has it."""
    coordinator = scheduler.kv_cache_manager.coordinator
    return coordinator if isinstance(coordinator, AscendHybridKVCacheCoordinator) else None


@changes(f"{_SCHEDULER}.__init__", COORDINATOR)
def wrap_init(original: Callable) -> Callable:
    """The KV cache manager is not told of drafts and connectors, nor, by vLLM 0.20.2, of the
    scheduler's block size."""
    signature = inspect.signature(original)

    def __init__(self: Scheduler, *args, **kwargs) -> None:
        arguments = signature.bind(self, *args, **kwargs).arguments
        with building_scheduler(
            block_size=arguments["block_size"],
            **facts_of(arguments["vllm_config"], load_config()),
        ):
            original(self, *args, **kwargs)
        coordinator = _our_coordinator(self)
        if coordinator is not None:
            manager = self.kv_cache_manager
            if drafts := running_release().draft_event_metadata(manager.num_kv_cache_groups):
                manager.kv_cache_event_metadata += drafts
        if self.connector is not None and coordinator is not None:
            query = ConnectorQuery(self.connector.get_num_new_matched_tokens)
            coordinator.ask_connector(query)
            self.connector.get_num_new_matched_tokens = query.get_num_new_matched_tokens

    return __init__


@changes(f"{_SCHEDULER}._handle_invalid_blocks", CONNECTORS)
def wrap_handle_invalid_blocks(original: Callable) -> Callable:
    """A failed load ends the engine where there are several KV cache groups: vLLM unpacks one."""

    def _handle_invalid_blocks(
        self: Scheduler,
        invalid_block_ids: set[int],
        num_scheduled_tokens: dict[str, int] | None = None,
    ) -> set[str]:
        """Fail or restart the requests that rest on blocks which a connector could not load.

        vLLM cuts a request back to its last valid block. With windows that is no place to resume
        at: those behind it are gone. So the request starts anew, with whatever it hits.
        """
        specs = group_specs(self.kv_cache_config)
        is_stock = len(specs) == 1 and not is_windowed(specs[0])
        if is_stock or _our_coordinator(self) is None:
            return original(self, invalid_block_ids, num_scheduled_tokens or {})
        lost = lost_blocks(invalid_block_ids)

        def affected(requests: list[Request]) -> list[Request]:
            tables = self.kv_cache_manager.get_block_ids
            return [r for r in requests if is_affected(tables(r.request_id), lost)]

        loading = affected(
            [r for r in self.skipped_waiting if r.status == RequestStatus.WAITING_FOR_REMOTE_KVS]
        )
        running = affected(self.running)
        _evict_behind(self, running, lost)
        if not self.recompute_kv_load_failures:
            return {request.request_id for request in (*loading, *running)}
        for request in loading:
            request.num_computed_tokens = 0
            self.failed_recving_kv_req_ids.add(request.request_id)
        for request in reversed(running):
            _restart(self, request)
        return {request.request_id for request in running}

    return _handle_invalid_blocks


def _evict_behind(scheduler: Scheduler, requests: list[Request], lost: Set[int]) -> None:
    """Nothing that was computed behind an invalid block may be hit."""
    manager = scheduler.kv_cache_manager
    block_tokens = [tokens_per_block(spec) for spec in group_specs(scheduler.kv_cache_config)]
    for request in requests:
        tables = manager.get_block_ids(request.request_id)
        manager.evict_blocks(blocks_to_evict(tables, block_tokens, lost))


def _restart(scheduler: Scheduler, request: Request) -> None:
    """Put a running request back, as vLLM does when it resets the cache under running requests."""
    scheduler.running.remove(request)
    scheduler._preempt_request(request, time.monotonic())
    # Not before: over a checkout it is a subclass of what vllm-ascend puts in Scheduler's place.
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    in_flight = request.request_id in scheduler.prev_step_scheduled_req_ids
    # Asynchronous: the step after the one that failed has been dispatched, and will sample.
    if isinstance(scheduler, AsyncScheduler) and in_flight and request.num_output_placeholders:
        running_release().discard_next_output(request)
    request.num_output_placeholders = 0
    scheduler.prev_step_scheduled_req_ids.discard(request.request_id)


@changes(f"{_SCHEDULER}._select_waiting_queue_for_scheduling", CONNECTORS)
def wrap_select_waiting_queue(original: Callable) -> Callable:
    """A request whose load failed is computed; in front of loaded ones it may wait for memory that
    they hold, and nothing is ever scheduled again."""

    def _select_waiting_queue_for_scheduling(self: Scheduler):
        """Let requests whose blocks have been loaded go first where nothing runs.

        They hold memory that a request in front of them may be waiting for, for ever.
        """
        queue = self.skipped_waiting
        if (
            self.running
            or not queue
            or self.policy is not SchedulingPolicy.FCFS
            or _our_coordinator(self) is None
        ):
            return original(self)
        head = queue.peek_request()
        if head.num_computed_tokens == 0:
            for request in [r for r in queue if _is_loaded(self, r)][::-1]:
                queue.remove_request(request)
                queue.prepend_request(request)
        return original(self)

    return _select_waiting_queue_for_scheduling


def _is_loaded(scheduler: Scheduler, request: Request) -> bool:
    if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
        return request.request_id in scheduler.finished_recving_kv_req_ids
    return request.num_computed_tokens > 0


@changes(f"{_SCHEDULER}._preempt_request", UNWRITTEN)
def wrap_preempt_request(original: Callable) -> Callable:
    """By priority, a request can be preempted in the step that it was just scheduled in; what it
    entered is never written."""

    def _preempt_request(self: Scheduler, request: Request, *args, **kwargs) -> None:
        coordinator = _our_coordinator(self)
        if coordinator is not None:
            coordinator.withdraw_unwritten(request.request_id)
        original(self, request, *args, **kwargs)

    return _preempt_request


@changes(f"{_SCHEDULER}._update_after_schedule", PARTIAL_HITS)
def wrap_update_after_schedule(original: Callable) -> Callable:
    """The one call that every scheduler makes on the output it has built."""

    def _update_after_schedule(self: Scheduler, scheduler_output: SchedulerOutput) -> None:
        copies = self.kv_cache_manager.take_kv_cache_block_copies()
        if copies is not None:
            scheduler_output.kv_cache_block_copies = copies
        original(self, scheduler_output)

    return _update_after_schedule


@changes(f"{_SCHEDULER}.update_from_output", CONNECTORS)
def wrap_update_from_output(original: Callable) -> Callable:
    """A KV connector writes beside the steps: what a step copies from must not be given away before
    the step has run."""

    def update_from_output(
        self: Scheduler, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        coordinator = _our_coordinator(self)
        if coordinator is not None and (copies := scheduler_output.kv_cache_block_copies):
            coordinator.confirm_block_copies(copies)
        return original(self, scheduler_output, model_runner_output)

    return update_from_output


@changes(f"{_SCHEDULER}.reset_prefix_cache", KV_EVENTS)
def wrap_reset_prefix_cache(original: Callable) -> Callable:
    """vLLM publishes events behind a step. An engine that is reset while it is idle makes none, and
    routers would go on sending requests to a cache that is gone."""

    def reset_prefix_cache(self: Scheduler, *args, **kwargs) -> bool:
        is_reset = original(self, *args, **kwargs)
        if isinstance(self.kv_cache_manager.block_pool, AscendBlockPool):
            events = self.kv_cache_manager.take_events()
            if events:
                self.kv_event_publisher.publish(KVEventBatch(ts=time.time(), events=events))
        return is_reset

    return reset_prefix_cache


PATCHES: tuple[Patch, ...] = (
    wrap_init,
    wrap_handle_invalid_blocks,
    wrap_select_waiting_queue,
    wrap_preempt_request,
    wrap_reset_prefix_cache,
    Add(
        target=f"{_OUTPUT}.kv_cache_block_copies",
        replacement=None,
        **PARTIAL_HITS,
        why="Workers are told which pages to copy before the step. A default on the class: "
        "dataclasses.replace drops what is only on the instance.",
    ),
    wrap_update_after_schedule,
    wrap_update_from_output,
)
