# SPDX-License-Identifier: Apache-2.0
"""What a worker answers to a scheduler's step where no model runs."""

from __future__ import annotations

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput


def sampled(scheduler: Scheduler, output: SchedulerOutput) -> ModelRunnerOutput:
    """Return token 1 for every request whose tokens are all computed behind the step."""
    ids = list(output.num_scheduled_tokens)
    requests = [scheduler.requests[i] for i in ids]
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={name: i for i, name in enumerate(ids)},
        sampled_token_ids=[[1] if r.num_computed_tokens >= r.num_tokens else [] for r in requests],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def finish_prefill(scheduler: Scheduler) -> None:
    """Step until every request in the scheduler decodes."""
    while any(r.num_computed_tokens < r.num_prompt_tokens for r in scheduler.requests.values()):
        output = scheduler.schedule()
        scheduler.update_from_output(output, sampled(scheduler, output))
