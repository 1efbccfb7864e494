# SPDX-License-Identifier: Apache-2.0
"""Runs a workload through a real scheduler and measures what its prefix cache does."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import NamedTuple

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs

from vllm_ascend.dry_run.scheduler import make_request
from vllm_ascend.dry_run.worker import Worker
from vllm_ascend_evaluation.replay.runs.arrivals import Arrivals
from vllm_ascend_evaluation.replay.runs.clock import VirtualClock
from vllm_ascend_evaluation.replay.runs.job import CostModel
from vllm_ascend_evaluation.replay.runs.recorder import Recorder
from vllm_ascend_evaluation.replay.trace import TraceRequest

# A scheduler that runs nothing so many steps in a row will never run anything again.
_MAX_IDLE_STEPS = 100
WAITING_STEP_MS = 1.0


class StalledError(RuntimeError):
    """The scheduler holds requests that it never schedules."""


class ReplayLoop(ABC):
    """Lets requests in when they are due, and steps until all have been answered."""

    def __init__(self, arrivals: Arrivals, clock: VirtualClock | None = None) -> None:
        self._arrivals = arrivals
        self._clock = clock or VirtualClock()
        self._num_added = 0

    @property
    def _now_ms(self) -> float:
        return self._clock.now_ms

    @_now_ms.setter
    def _now_ms(self, now_ms: float) -> None:
        self._clock.move_to(now_ms)

    def run(self, on_progress: Callable[[int], None]) -> None:
        """Replay everything.

        Args:
            on_progress: Told the number of requests scheduled so far, after every step.

        Raises:
            ContentViolation: A worker is the content oracle's and found one.
            StalledError: Requests wait, but none is ever scheduled.
        """
        idle_steps = 0
        while self._let_in() or self._live or self._wait():
            idle_steps = 0 if self._step() else idle_steps + 1
            if idle_steps > _MAX_IDLE_STEPS:
                waiting = ", ".join(self._live)
                raise StalledError(f"nothing is scheduled any more; waiting: {waiting}")
            on_progress(self._num_scheduled)

    @property
    @abstractmethod
    def _live(self) -> Collection[str]:
        """The names of the requests that have not been answered."""

    @property
    @abstractmethod
    def _num_scheduled(self) -> int:
        """How many requests have been scheduled so far."""

    @abstractmethod
    def _add(self, request: TraceRequest) -> None:
        """Enqueue a request."""

    @abstractmethod
    def _step(self) -> int:
        """Run one step; return how many tokens it computed."""

    def _let_in(self) -> bool:
        """Enqueue every request that is due; return whether there was one."""
        let_in = False
        while (
            self._may_let_in()
            and (request := self._arrivals.due(len(self._live), self._now_ms)) is not None
        ):
            self._add(request)
            let_in = True
        return let_in

    def _may_let_in(self) -> bool:
        """Whether the next request may be enqueued as soon as it is due."""
        return True

    def _wait(self) -> bool:
        """With nothing to do, move the clock to the next arrival, if there is one."""
        arrival = self._arrivals.next_arrival_ms()
        if arrival is None:
            return False
        self._now_ms = max(self._now_ms, arrival)
        return self._let_in()

    def _next_name(self) -> str:
        self._num_added += 1
        return str(self._num_added - 1)


class Step(NamedTuple):
    """A step that is over.

    Attributes:
        num_tokens: What it computed.
        ends_ms: When it ended on the virtual clock.
        outputs: By front end.
    """

    num_tokens: int
    ends_ms: float
    outputs: dict[int, EngineCoreOutputs]


def run_step(
    scheduler: Scheduler,
    worker: Worker,
    recorder: Recorder,
    end_of: Callable[[SchedulerOutput], float],
) -> Step:
    """Schedule, execute, record and settle one step of an engine.

    Args:
        end_of: Returns when a step that has been executed ends, in ms on the virtual clock.
    """
    start = time.perf_counter()
    output = scheduler.schedule()
    elapsed = time.perf_counter() - start
    result = worker.execute(output)
    ends_ms = end_of(output)
    recorder.step(output, elapsed, ends_ms)
    outputs = scheduler.update_from_output(output, result)
    recorder.answered(outputs.values(), ends_ms)
    drafts = worker.take_draft_token_ids()
    if drafts is not None:
        scheduler.update_draft_token_ids(drafts)
    return Step(output.total_num_scheduled_tokens, ends_ms, outputs)


class Restart(NamedTuple):
    """An engine ends in the middle, and another one takes its place.

    Attributes:
        at: Before this request, when all earlier ones have been answered.
        start: Returns the other one.
    """

    at: int
    start: Callable[[], tuple[Scheduler, Worker]]


class ReplayEngine(ReplayLoop):
    """The loop of an engine: let requests in, schedule, execute, update.

    Attributes:
        scheduler: The one that runs.
        workers: Those of all engines that ran, the last one's last.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        worker: Worker,
        arrivals: Arrivals,
        recorder: Recorder,
        cost_model: CostModel | None = None,
        clock: VirtualClock | None = None,
        restart: Restart | None = None,
    ) -> None:
        super().__init__(arrivals, clock)
        self.scheduler = scheduler
        self.workers = [worker]
        self._restart = restart
        self._recorder = recorder
        self._cost_model = cost_model
        # Live requests of sessions, by name.
        self._of_sessions: dict[str, TraceRequest] = {}

    @property
    def _live(self) -> Collection[str]:
        return self.scheduler.requests

    @property
    def _num_scheduled(self) -> int:
        return self._recorder.num_requests

    def _step(self) -> int:
        step = run_step(self.scheduler, self.workers[-1], self._recorder, self._advance_clock)
        self._tell_finished()
        return step.num_tokens or self._clock.num_awaited

    def _may_let_in(self) -> bool:
        if self._restart is None or self._num_added < self._restart.at:
            return True
        if self._live:
            return False
        self.scheduler.shutdown()
        self.scheduler, worker = self._restart.start()
        self.workers.append(worker)
        self._recorder.restarted(self.scheduler)
        self._restart = None
        return True

    def _tell_finished(self) -> None:
        """Tell the arrivals which requests were answered: others of their sessions may wait."""
        live = self.scheduler.requests
        for name in [name for name in self._of_sessions if name not in live]:
            self._arrivals.finished(self._of_sessions.pop(name), self._now_ms)

    def _add(self, request: TraceRequest) -> None:
        name = self._next_name()
        start = time.perf_counter()
        vllm_request = make_request(
            self.scheduler, name, request.prompt_token_ids, request.output_tokens
        )
        self.scheduler.add_request(vllm_request)
        if request.session is not None:
            self._of_sessions[name] = request
        elapsed = time.perf_counter() - start
        assert request.arrival_ms is not None, "arrivals say when a request arrived"
        self._recorder.added(name, len(request.prompt_token_ids), elapsed, request.arrival_ms)

    def _advance_clock(self, output: SchedulerOutput) -> float:
        """Move the clock to the end of a step; return it."""
        if self._cost_model is not None:
            num_tokens = output.total_num_scheduled_tokens
            step_ms = self._cost_model.step_duration_ms(num_tokens)
            # In a step that only waits, time passes as well.
            step_ms = step_ms if num_tokens else max(step_ms, WAITING_STEP_MS)
            self._now_ms += step_ms + getattr(self.workers[-1], "step_load_ms", 0.0)
        return self._now_ms
