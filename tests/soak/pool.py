# SPDX-License-Identifier: Apache-2.0
"""Episodes in several processes, until time or steps run out."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tests.soak.summary import Summary

# Seconds of computing; an episode takes a few.
_MAX_EPISODE_S = 300.0
_MAX_FAILURES = 10


@dataclass(frozen=True)
class Budget:
    """How long a soak goes on: until the first of the two is spent."""

    seconds: float | None
    steps: int | None

    def is_spent(self, since: float, steps: int) -> bool:
        """Whether no further episode is to start."""
        out_of_time = self.seconds is not None and time.monotonic() - since >= self.seconds
        return out_of_time or (self.steps is not None and steps >= self.steps)


def soak(
    seed: int, budget: Budget, jobs: int, out: Path, on_progress: Callable[[Summary], None]
) -> Summary:
    """Run episodes 0, 1, 2, ... of a seed; an interrupt ends them, what is known is kept."""
    # Sets of names are walked in the same order in every process.
    os.environ |= {"PYTHONHASHSEED": "0", "VLLM_LOGGING_LEVEL": "CRITICAL", "OMP_NUM_THREADS": "1"}
    summary = Summary(seed)
    context = multiprocessing.get_context("spawn")
    since = time.monotonic()
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_prepare) as executor:
        pending: set[Future[Any]] = set()
        episodes = count()
        try:
            while True:
                while len(pending) < jobs and not (
                    budget.is_spent(since, summary.steps) or len(summary.failures) >= _MAX_FAILURES
                ):
                    pending.add(executor.submit(_run, seed, next(episodes), out))
                if not pending:
                    break
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    summary.add(future.result())
                summary.seconds = time.monotonic() - since
                on_progress(summary)
        except KeyboardInterrupt:
            summary.interrupted = True
            for process in executor._processes.values():
                process.terminate()
    return summary


def _prepare() -> None:
    """Of a child: import what takes long, and leave interrupts to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, _give_up)
    import tests.soak.episode  # noqa: F401

    logging.getLogger("vllm").setLevel(logging.CRITICAL)


def _give_up(*_: object) -> None:
    raise TimeoutError(f"the episode has not ended after {_MAX_EPISODE_S:.0f} s of computing")


def _run(seed: int, episode: int, out: Path) -> Any:
    from tests.soak.episode import run

    # Of computing, not of the clock: a busy machine is no failure.
    signal.setitimer(signal.ITIMER_PROF, _MAX_EPISODE_S)
    try:
        result = run(seed, episode)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if result.recording is not None:
        result.recording.save(out / f"case-{result.recording.name}.json")
    return result
