# SPDX-License-Identifier: Apache-2.0
"""The worker of an engine with rings: it hands a step's orders to the model's layers."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

from vllm_ascend_evaluation.models.attention import PagedAttention
from vllm_ascend_evaluation.models.ring_cache import RingStep


class RingWorker(CPUWorker):
    """vLLM's worker for the CPU, which restores rings and lets snapshots be taken."""

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """Execute a step."""
        step = RingStep(scheduler_output, self.model_runner.input_batch)
        for module in self.model_runner.get_model().modules():
            for cache in module.ring_caches() if isinstance(module, PagedAttention) else ():
                cache.begin(step)
        return super().execute_model(scheduler_output)
