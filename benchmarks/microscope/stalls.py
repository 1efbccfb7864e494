# SPDX-License-Identifier: Apache-2.0
"""Fails if the slowest steps of long sessions take too much longer than most of them do::

python -m benchmarks.microscope.stalls

Sessions of coding agents, whose prompts grow from 100,000 to 500,000 tokens, run on the real
scheduler with DeepSeek-V4-Flash's layout: as upstream, with ``best``, and with a tier below that.
Measured is the CPU time of every ``schedule()``, Python's garbage collector included. Where it
ran within is counted.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.microscope.sides import SIDES, Side
from vllm_ascend_evaluation.replay.runs.job import CLOSED_LOOP, Job
from vllm_ascend_evaluation.replay.sources import WorkloadSource
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload
from vllm_ascend_evaluation.replay.variants import ASCEND_LAYOUT

REPEATS = 5
NUM_TURNS = 150
_LIVE, _FIRST_TOKENS, _LAST_TOKENS, _ANSWER_TOKENS = 16, 100_000, 500_000, 64


@dataclass(frozen=True)
class Stalls:
    """What is measured, and what is allowed.

    Attributes:
        side: What is switched on.
        tier_gib: Host memory of a tier below; ``None``: there is none.
        at_most: p99 of ``schedule()`` by its p50; ``None``: it is shown beside the others.
        most_collections: So often the garbage collector may run within. That depends on no machine.
    """

    name: str
    side: Side
    tier_gib: float | None
    at_most: float | None
    most_collections: int = 0

    def is_kept(self, steps: Steps) -> bool:
        """Whether a run is within the limits."""
        if self.at_most is None:
            return True
        return steps.ratio <= self.at_most and steps.num_collections <= self.most_collections


@dataclass(frozen=True)
class Steps:
    """The steps of one run.

    Attributes:
        milliseconds: CPU time of each ``schedule()``.
        num_collections: How often the garbage collector ran within.
    """

    milliseconds: list[float]
    num_collections: int

    @property
    def percentiles(self) -> tuple[float, float]:
        """p50 and p99 in milliseconds."""
        p50, p99 = np.percentile(self.milliseconds, [50, 99])
        return float(p50), float(p99)

    @property
    def ratio(self) -> float:
        """p99 by p50."""
        p50, p99 = self.percentiles
        return p99 / p50


ALL_STALLS = (
    Stalls("as upstream", SIDES["upstream-128"], None, None),
    Stalls("best", SIDES["best-128"], None, 8.0, 5),
    Stalls("best, with a tier", SIDES["best-128"], 256, 10.0, 20),
)


def turns(num_turns: int) -> Iterator[TraceRequest]:
    """Yield the turns of sessions, those of all sessions mixed; each goes on in its own.

    Ids count up, so a session's tokens are no other's.
    """
    rng = random.Random(0)
    ends: dict[int, int] = {}
    num_sessions = 0
    for _ in range(num_turns):
        if len(ends) < _LIVE:
            ends[num_sessions] = rng.randrange(_FIRST_TOKENS, 2 * _FIRST_TOKENS)
            num_sessions += 1
        session = rng.choice(list(ends))
        first = session << 24
        prompt = list(range(first, first + ends[session]))
        yield TraceRequest(prompt, _ANSWER_TOKENS, session=session)
        ends[session] += rng.randrange(500, 20_000)
        if ends[session] > _LAST_TOKENS:
            del ends[session]


def make_job(stalls: Stalls) -> Job:
    """Return what a replay of 16 GiB of KV cache would run."""
    return Job(
        variant=stalls.name,
        patched=True,
        environment={},
        layout=ASCEND_LAYOUT,
        block_size=128,
        kv_memory_bytes=16 << 30,
        workload=WorkloadSource("W1"),
        arrivals=CLOSED_LOOP,
        cost_model=None,
        max_num_seqs=_LIVE,
        max_num_batched_tokens=8192,
        max_model_len=1 << 20,
        verify=False,
        tier_gib=stalls.tier_gib,
    )


def measure(stalls: Stalls, num_turns: int = NUM_TURNS) -> Steps:
    """Run all turns; what this process has allocated before is no garbage."""
    import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    from vllm_ascend_evaluation.replay.runs.arrivals import ClosedLoop
    from vllm_ascend_evaluation.replay.runs.child import build_job_scheduler, make_worker
    from vllm_ascend_evaluation.replay.runs.engine import ReplayEngine
    from vllm_ascend_evaluation.replay.runs.recorder import Recorder

    job = make_job(stalls)
    with patch.dict(os.environ, {**_ALL_UNSET, **stalls.side.environment}):
        scheduler = build_job_scheduler(job)
    worker, recorder = make_worker(job, scheduler), Recorder(scheduler, num_turns)
    workload = Workload("sessions", "long sessions", _LIVE, num_turns, lambda: turns(num_turns))
    watch = _Watch(scheduler.schedule)
    scheduler.schedule = watch.call
    gc.collect()
    gc.freeze()
    gc.callbacks.append(watch.collected)
    try:
        ReplayEngine(scheduler, worker, ClosedLoop(workload), recorder).run(lambda done: None)
    finally:
        gc.callbacks.remove(watch.collected)
        gc.unfreeze()
    return Steps(watch.milliseconds, watch.num_collections)


# What another side has set is off.
_ALL_UNSET = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "stock"}


class _Watch:
    """Times a function, and counts the garbage collections within."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function, self._is_within = function, False
        self.milliseconds: list[float] = []
        self.num_collections = 0

    def call(self) -> Any:
        self._is_within, start = True, time.thread_time_ns()
        result = self._function()
        self.milliseconds.append((time.thread_time_ns() - start) / 1e6)
        self._is_within = False
        return result

    def collected(self, phase: str, info: dict[str, int]) -> None:
        self.num_collections += self._is_within and phase == "stop"


def ratios_of(stalls: Stalls, run: Callable[[Stalls], Steps] = measure) -> list[Steps]:
    """Return runs until one is within the limits, ``REPEATS`` at most."""
    runs = [run(stalls)]
    while not stalls.is_kept(runs[-1]) and len(runs) < REPEATS:
        runs.append(run(stalls))
    return runs


def main() -> int:
    """Check everything; return the exit status."""
    os.environ["VLLM_ASCEND_APPLY_DSV4_PATCH"] = "1"
    logging.getLogger("vllm").setLevel(logging.ERROR)
    table = Table(
        "schedule()",
        "steps",
        "p50, ms",
        "p99, ms",
        "collections",
        "p99 / p50",
        "at most",
        box=SIMPLE_HEAD,
    )
    is_kept = True
    for stalls in ALL_STALLS:
        runs = ratios_of(stalls)
        best = min(runs, key=lambda steps: steps.ratio)
        kept = any(map(stalls.is_kept, runs))
        is_kept = is_kept and kept
        p50, p99 = best.percentiles
        table.add_row(
            stalls.name,
            f"{len(best.milliseconds):,}",
            f"{p50:.2f}",
            f"{p99:.2f}",
            str(best.num_collections),
            ", ".join(f"{steps.ratio:.1f}" for steps in runs),
            "" if stalls.at_most is None else f"{stalls.at_most:.0f}",
            style="" if kept else "bold red",
        )
    Console().print(table)
    return int(not is_kept)


if __name__ == "__main__":
    sys.exit(main())
