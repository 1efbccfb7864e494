# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/worker/worker_base.py``: no step goes on without its block copies."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.worker_base import WorkerWrapperBase

from vllm_ascend.patch.features import PARTIAL_HITS
from vllm_ascend.patch.table import Patch, changes
from vllm_ascend.worker.block_copies import execute_with_copies


@changes("vllm.v1.worker.worker_base:WorkerWrapperBase.execute_model", PARTIAL_HITS)
def wrap_execute_model(
    self: WorkerWrapperBase, scheduler_output: SchedulerOutput, *, original: Callable
):
    """A runner that overrides `_update_states` would silently copy nothing."""
    copies = scheduler_output.kv_cache_block_copies
    if not copies:
        return original(self, scheduler_output)
    runner = getattr(self.worker, "model_runner", None)
    return execute_with_copies(runner, copies, lambda: original(self, scheduler_output))


PATCHES: tuple[Patch, ...] = (wrap_execute_model,)
