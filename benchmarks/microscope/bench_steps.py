# SPDX-License-Identifier: Apache-2.0
"""What a step costs in which every running request decodes one token."""

from __future__ import annotations

import pytest
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from benchmarks.microscope.cases import RUNNING, size
from benchmarks.microscope.sides import Side
from benchmarks.microscope.workbench import build, random_prompt
from benchmarks.steps import finish_prefill
from vllm_ascend.dry_run.scheduler import make_request
from vllm_ascend.dry_run.worker import SamplingWorker

# Every block size and granule divides it: no request is at a boundary more often than another.
CYCLE_STEPS = 128
_CYCLES = 2


@pytest.fixture(scope="module", params=RUNNING, ids=lambda place: size(*reversed(place)))
def scheduler(request: pytest.FixtureRequest, side: Side) -> Scheduler:
    """A scheduler whose requests all decode, each at another place in its block."""
    num_running, num_tokens = request.param
    scheduler = build(side, max_num_seqs=num_running)
    for i in range(num_running):
        prompt = random_prompt(num_tokens - i * CYCLE_STEPS // num_running, seed=i)
        scheduler.add_request(make_request(scheduler, f"r{i}", prompt, max_tokens=10_000))
    finish_prefill(scheduler)
    return scheduler


class Stepper:
    """Calls the two halves of a step in turn."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._worker = SamplingWorker(scheduler)
        self._output: SchedulerOutput | None = None

    def schedule(self) -> None:
        self._output = self._scheduler.schedule()

    def answer(self) -> None:
        self._answer = self._worker.execute(self._output)

    def update(self) -> None:
        self._scheduler.update_from_output(self._output, self._answer)


def in_cycles(benchmark, target, setup, teardown) -> None:
    """Measure whole cycles of steps; what a step costs is the mean over one."""
    benchmark.extra_info.update(calls=CYCLE_STEPS, operations=CYCLE_STEPS)
    rounds = _CYCLES * CYCLE_STEPS
    benchmark.pedantic(target, setup=setup, teardown=teardown, rounds=rounds, warmup_rounds=16)


def bench_schedule(benchmark, scheduler: Scheduler) -> None:
    stepper = Stepper(scheduler)

    def teardown() -> None:
        stepper.answer()
        stepper.update()

    in_cycles(benchmark, stepper.schedule, lambda: None, teardown)


def bench_update(benchmark, scheduler: Scheduler) -> None:
    stepper = Stepper(scheduler)

    def setup() -> None:
        stepper.schedule()
        stepper.answer()

    in_cycles(benchmark, stepper.update, setup, lambda: None)
