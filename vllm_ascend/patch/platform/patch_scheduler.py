# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/sched/scheduler.py``: tells the KV cache manager what it works with."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

from vllm.config import VllmConfig
from vllm.distributed.kv_events import KVEventBatch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from vllm_ascend.core.ascend_block_pool import AscendBlockPool
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.scheduler_facts import coordinators_told
from vllm_ascend.patch.features import KV_EVENTS, PARTIAL_HITS, RETENTION, UNWRITTEN
from vllm_ascend.patch.table import Add, Patch, Wrap

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_OUTPUT = "vllm.v1.core.sched.output:SchedulerOutput"


def _facts_of(vllm_config: VllmConfig) -> dict[str, int | bool]:
    speculative_config = vllm_config.speculative_config
    num_drafts = 0 if speculative_config is None else speculative_config.num_speculative_tokens
    return {
        "num_draft_tokens": num_drafts,
        "num_unconfirmed_tokens": (
            num_drafts if vllm_config.scheduler_config.async_scheduling else 0
        ),
        "has_connector": vllm_config.kv_transfer_config is not None,
    }


def wrap_init(original: Callable) -> Callable:
    signature = inspect.signature(original)

    def __init__(self: Scheduler, *args, **kwargs) -> None:
        arguments = signature.bind(self, *args, **kwargs).arguments
        with coordinators_told(
            block_size=arguments["block_size"], **_facts_of(arguments["vllm_config"])
        ):
            original(self, *args, **kwargs)

    return __init__


def wrap_preempt_request(original: Callable) -> Callable:
    def _preempt_request(self: Scheduler, request: Request, timestamp: float) -> None:
        coordinator = self.kv_cache_manager.coordinator
        if isinstance(coordinator, AscendHybridKVCacheCoordinator):
            coordinator.withdraw_unwritten(request.request_id)
        original(self, request, timestamp)

    return _preempt_request


def wrap_update_after_schedule(original: Callable) -> Callable:
    def _update_after_schedule(self: Scheduler, scheduler_output: SchedulerOutput) -> None:
        copies = self.kv_cache_manager.take_kv_cache_block_copies()
        if copies is not None:
            scheduler_output.kv_cache_block_copies = copies
        original(self, scheduler_output)

    return _update_after_schedule


def wrap_reset_prefix_cache(original: Callable) -> Callable:
    def reset_prefix_cache(self: Scheduler, *args, **kwargs) -> bool:
        is_reset = original(self, *args, **kwargs)
        if isinstance(self.kv_cache_manager.block_pool, AscendBlockPool):
            events = self.kv_cache_manager.take_events()
            if events:
                self.kv_event_publisher.publish(KVEventBatch(ts=time.time(), events=events))
        return is_reset

    return reset_prefix_cache


PATCHES: tuple[Patch, ...] = (
    Wrap(
        target=f"{_SCHEDULER}.__init__",
        replacement=wrap_init,
        upstream_sha256="bc95a9f15113e884",
        aliases=(),
        **RETENTION,
        why="vLLM 0.20.2 does not tell the KV cache manager the scheduler's block size, nor how "
        "many tokens it may count as computed too early.",
        skip_if_present="vllm.v1.core.kv_cache_manager:KVCacheManager.__init__"
        "(scheduler_block_size)",
    ),
    Wrap(
        target=f"{_SCHEDULER}._preempt_request",
        replacement=wrap_preempt_request,
        upstream_sha256="128202fc69d1f908",
        aliases=(),
        **UNWRITTEN,
        why="By priority, a request can be preempted in the step that it was just scheduled in; "
        "what it entered is never written.",
    ),
    Wrap(
        target=f"{_SCHEDULER}.reset_prefix_cache",
        replacement=wrap_reset_prefix_cache,
        upstream_sha256="cfb9da648143a518",
        aliases=(),
        **KV_EVENTS,
        why="vLLM publishes events behind a step. An engine that is reset while it is idle makes "
        "none, and routers would go on sending requests to a cache that is gone.",
    ),
    Add(
        target=f"{_OUTPUT}.kv_cache_block_copies",
        replacement=None,
        **PARTIAL_HITS,
        why="Workers are told which pages to copy before the step. A default on the class: "
        "dataclasses.replace drops what is only on the instance.",
        skip_if_present=f"{_OUTPUT}.kv_cache_block_copies",
    ),
    Wrap(
        target=f"{_SCHEDULER}._update_after_schedule",
        replacement=wrap_update_after_schedule,
        upstream_sha256="5dcec8ecd4cd8b72",
        aliases=(),
        **PARTIAL_HITS,
        why="The one call that every scheduler makes on the output it has built.",
        skip_if_present=f"{_OUTPUT}.kv_cache_block_copies",
    ),
)
