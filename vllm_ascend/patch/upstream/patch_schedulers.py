# SPDX-License-Identifier: Apache-2.0
"""``vllm_ascend/core/*scheduler*.py``: schedulers that free and start steps in their own way."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.patch.features import CHECKOUT_CACHE
from vllm_ascend.patch.table import Patch, Wrap


def wrap_schedule(original: Callable) -> Callable:
    def schedule(self: Scheduler) -> SchedulerOutput:
        coordinator = self.kv_cache_manager.coordinator
        if not isinstance(coordinator, AscendHybridKVCacheCoordinator):
            return original(self)
        with coordinator.frees_withdraw():
            return original(self)

    return schedule


def wrap_schedule_that_starts_no_step(original: Callable) -> Callable:
    scheduling = wrap_schedule(original)

    def schedule(self: Scheduler) -> SchedulerOutput:
        self.kv_cache_manager.new_step_starts()
        return scheduling(self)

    return schedule


PATCHES: tuple[Patch, ...] = (
    Wrap(
        target="vllm_ascend.core.recompute_scheduler:RecomputeScheduler.schedule",
        replacement=wrap_schedule,
        upstream_sha256="3d93bc5d71369f8f",
        aliases=(),
        **CHECKOUT_CACHE,
        why="On a decode node it frees a running request itself instead of preempting it: what "
        "the request entered in this step is never written.",
    ),
    Wrap(
        target="vllm_ascend.core.scheduler_dynamic_batch:SchedulerDynamicBatch.schedule",
        replacement=wrap_schedule_that_starts_no_step,
        upstream_sha256="a498f06d02920165",
        aliases=(),
        **CHECKOUT_CACHE,
        why="It frees running requests itself, and never says that a step starts: sources of "
        "copies would stay referenced for good.",
    ),
)
