# SPDX-License-Identifier: Apache-2.0
"""``vllm_ascend/core/recompute_scheduler.py``: it frees running requests in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_ascend.patch.engine.patch_scheduler import our_coordinator, wrap_update_from_output
from vllm_ascend.patch.features import CHECKOUT_CACHE
from vllm_ascend.patch.table import Patch, changes

_CLASS = "vllm_ascend.core.recompute_scheduler:RecomputeScheduler"


@changes(f"{_CLASS}.schedule", CHECKOUT_CACHE)
def wrap_schedule(
    self: Scheduler, *args: Any, original: Callable, **kwargs: Any
) -> SchedulerOutput:
    """On a decode node it frees running requests, whose entries are never written."""
    coordinator = our_coordinator(self)
    if coordinator is None:
        return original(self, *args, **kwargs)
    with coordinator.frees_withdraw():
        return original(self, *args, **kwargs)


PATCHES: tuple[Patch, ...] = (
    wrap_schedule,
    changes(
        f"{_CLASS}.update_from_output",
        CHECKOUT_CACHE,
        why="Overrides vLLM's, which is told that a step has run.",
    )(wrap_update_from_output.replacement),
)
