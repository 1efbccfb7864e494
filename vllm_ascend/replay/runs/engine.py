# SPDX-License-Identifier: Apache-2.0
"""Runs a workload through a real scheduler and measures what its prefix cache does."""

from __future__ import annotations

import time
from collections.abc import Callable

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

from vllm_ascend.replay.runs.arrivals import Arrivals
from vllm_ascend.replay.runs.job import CostModel
from vllm_ascend.replay.runs.recorder import Recorder
from vllm_ascend.replay.scheduler import make_request
from vllm_ascend.replay.trace import TraceRequest
from vllm_ascend.replay.worker import Worker

# A scheduler that runs nothing so many steps in a row will never run anything again.
_MAX_IDLE_STEPS = 100


class StalledError(RuntimeError):
    """The scheduler holds requests that it never schedules."""


class ReplayEngine:
    """The loop of an engine: let requests in, schedule, execute, update."""

    def __init__(
        self,
        scheduler: Scheduler,
        worker: Worker,
        arrivals: Arrivals,
        recorder: Recorder,
        cost_model: CostModel | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._worker = worker
        self._arrivals = arrivals
        self._recorder = recorder
        self._cost_model = cost_model
        self._now_ms = 0.0
        self._num_added = 0

    def run(self, on_progress: Callable[[int], None]) -> None:
        """Replay everything.

        Args:
            on_progress: Told the number of requests scheduled so far, after every step.

        Raises:
            ContentViolation: The worker is the content oracle's and found one.
            StalledError: Requests wait, but none is ever scheduled.
        """
        scheduler = self._scheduler
        idle_steps = 0
        while self._let_in() or scheduler.requests or self._wait():
            start = time.perf_counter()
            output = scheduler.schedule()
            elapsed = time.perf_counter() - start
            result = self._worker.execute(output)
            self._advance_clock(output)
            self._recorder.step(output, elapsed, self._now_ms)
            finished_first = self._first_tokens(output, result)
            self._recorder.first_tokens(finished_first, self._now_ms)
            scheduler.update_from_output(output, result)
            drafts = self._worker.take_draft_token_ids()
            if drafts is not None:
                scheduler.update_draft_token_ids(drafts)
            idle_steps = 0 if output.total_num_scheduled_tokens else idle_steps + 1
            if idle_steps > _MAX_IDLE_STEPS:
                waiting = ", ".join(scheduler.requests)
                raise StalledError(f"nothing is scheduled any more; waiting: {waiting}")
            on_progress(self._recorder.num_requests)

    def _let_in(self) -> bool:
        """Enqueue every request that is due; return whether there was one."""
        let_in = False
        while (request := self._arrivals.due(self._num_live, self._now_ms)) is not None:
            self._add(request)
            let_in = True
        return let_in

    def _wait(self) -> bool:
        """With nothing to do, move the clock to the next arrival, if there is one."""
        arrival = self._arrivals.next_arrival_ms()
        if arrival is None:
            return False
        self._now_ms = max(self._now_ms, arrival)
        return self._let_in()

    @property
    def _num_live(self) -> int:
        return len(self._scheduler.requests)

    def _add(self, request: TraceRequest) -> None:
        name = str(self._num_added)
        self._num_added += 1
        start = time.perf_counter()
        vllm_request = make_request(
            self._scheduler, name, request.prompt_token_ids, request.output_tokens
        )
        self._scheduler.add_request(vllm_request)
        elapsed = time.perf_counter() - start
        assert request.arrival_ms is not None, "arrivals say when a request arrived"
        self._recorder.added(name, len(request.prompt_token_ids), elapsed, request.arrival_ms)

    def _advance_clock(self, output: SchedulerOutput) -> None:
        if self._cost_model is not None:
            self._now_ms += self._cost_model.step_duration_ms(output.total_num_scheduled_tokens)

    def _first_tokens(self, output: SchedulerOutput, result: ModelRunnerOutput) -> list[str]:
        """Return the requests that get their first token in this step."""
        return [
            name
            for name, sampled in zip(result.req_ids, result.sampled_token_ids, strict=True)
            if sampled and not self._scheduler.requests[name].num_output_tokens
        ]
