# SPDX-License-Identifier: Apache-2.0
"""Several data-parallel ranks behind one front end, in lockstep."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_ascend.dry_run.scheduler import make_request
from vllm_ascend.dry_run.worker import Worker
from vllm_ascend_evaluation.replay.results import DataParallelResult
from vllm_ascend_evaluation.replay.runs.arrivals import Arrivals
from vllm_ascend_evaluation.replay.runs.balancer import Balancer
from vllm_ascend_evaluation.replay.runs.clock import VirtualClock
from vllm_ascend_evaluation.replay.runs.engine import WAITING_STEP_MS, ReplayLoop, Step, run_step
from vllm_ascend_evaluation.replay.runs.job import CostModel
from vllm_ascend_evaluation.replay.runs.recorder import Recorder, percentiles
from vllm_ascend_evaluation.replay.trace import TraceRequest


@dataclass(frozen=True)
class Rank:
    """One rank."""

    scheduler: Scheduler
    worker: Worker
    recorder: Recorder


class DataParallelEngine(ReplayLoop):
    """The loop of several engines: let requests in, choose their ranks, step all ranks.

    Ranks of a model with experts step together. So the virtual clock moves by the longest step.
    """

    def __init__(
        self,
        ranks: Sequence[Rank],
        balancer: Balancer,
        arrivals: Arrivals,
        cost_model: CostModel,
        clock: VirtualClock | None = None,
    ) -> None:
        super().__init__(arrivals, clock)
        self._ranks, self._balancer, self._cost_model = ranks, balancer, cost_model
        # By name: what came in, and the rank
        self._requests: dict[str, tuple[TraceRequest, Rank]] = {}
        self._imbalances: list[float] = []
        self._rank_of_session: dict[int, Rank] = {}
        self._num_moves = 0

    @property
    def _live(self) -> Collection[str]:
        return self._requests

    @property
    def _num_scheduled(self) -> int:
        return sum(rank.recorder.num_requests for rank in self._ranks)

    def result(self, routing: str) -> DataParallelResult:
        """Return what was measured of the ranks together."""
        recorders = [rank.recorder for rank in self._ranks]
        return DataParallelResult(
            num_ranks=len(self._ranks),
            routing=routing,
            num_requests=tuple(recorder.num_requests for recorder in recorders),
            prompt_tokens=tuple(recorder.prompt_tokens for recorder in recorders),
            computed_tokens=tuple(recorder.computed_tokens for recorder in recorders),
            live_imbalance=float(np.mean(self._imbalances or [1.0])),
            choice_us=percentiles(self._balancer.choice_us),
            num_predicted=self._balancer.num_predicted,
            num_sessions=len(self._rank_of_session),
            num_moves=self._num_moves,
        )

    def _add(self, request: TraceRequest) -> None:
        name = self._next_name()
        start = time.perf_counter()
        made = make_request(
            self._ranks[0].scheduler, name, request.prompt_token_ids, request.output_tokens
        )
        hashed = time.perf_counter() - start
        rank = self._ranks[self._balancer.choose(made)]
        if request.session is not None:
            before = self._rank_of_session.get(request.session, rank)
            self._num_moves += before is not rank
            self._rank_of_session[request.session] = rank
        start = time.perf_counter()
        rank.scheduler.add_request(made)
        elapsed = hashed + time.perf_counter() - start
        self._requests[name] = request, rank
        assert request.arrival_ms is not None, "arrivals say when a request arrived"
        rank.recorder.added(name, len(request.prompt_token_ids), elapsed, request.arrival_ms)

    def _step(self) -> int:
        """Step all ranks that have something to do; return the most tokens of one."""
        most, longest_ms = 0, 0.0
        live = [len(rank.scheduler.requests) for rank in self._ranks]
        self._imbalances.append(max(live) * len(live) / max(sum(live), 1))
        for number, rank in enumerate(self._ranks):
            if rank.scheduler.has_requests():
                step = self._step_rank(number, rank)
                most = max(most, step.num_tokens)
                longest_ms = max(longest_ms, step.ends_ms - self._now_ms)
        # In a step that only waits, time passes as well.
        self._now_ms += longest_ms if most else max(longest_ms, WAITING_STEP_MS)
        for name, rank in [(name, rank) for name, (_, rank) in self._requests.items()]:
            if name not in rank.scheduler.requests:
                request, _ = self._requests.pop(name)
                if request.session is not None:
                    self._arrivals.finished(request, self._now_ms)
        return most or self._clock.num_awaited

    def _step_rank(self, number: int, rank: Rank) -> Step:
        def end_of(output: SchedulerOutput) -> float:
            computing_ms = self._cost_model.step_duration_ms(output.total_num_scheduled_tokens)
            return self._now_ms + computing_ms + getattr(rank.worker, "step_load_ms", 0.0)

        step = run_step(rank.scheduler, rank.worker, rank.recorder, end_of)
        self._balancer.tell(number)
        for outputs in step.outputs.values():
            self._balancer.hear(number, outputs, step.ends_ms)
        return step
