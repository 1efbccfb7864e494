# SPDX-License-Identifier: Apache-2.0
"""Steps of a scheduler where no model runs."""

from __future__ import annotations

from vllm.v1.core.sched.scheduler import Scheduler

from vllm_ascend.dry_run.worker import SamplingWorker


def finish_prefill(scheduler: Scheduler) -> None:
    """Step until every request in the scheduler decodes."""
    worker = SamplingWorker(scheduler)
    while any(r.num_computed_tokens < r.num_prompt_tokens for r in scheduler.requests.values()):
        output = scheduler.schedule()
        scheduler.update_from_output(output, worker.execute(output))
