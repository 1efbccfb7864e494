# SPDX-License-Identifier: Apache-2.0
"""Episodes in several processes, until time or steps run out."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.soak.summary import Summary

if TYPE_CHECKING:
    from tests.soak.case import Recording
    from tests.soak.episode import Result

SHRINK_S = 120.0
"""Seconds of computing that a failure may take to shrink."""
# The same bug is found again and again.
_MAX_FAILURES = 10
_CHILD_ENVIRONMENT = {
    # Sets of names are walked in the same order in every process.
    "PYTHONHASHSEED": "0",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Budget:
    """How long a soak goes on: until the first of the two is spent."""

    seconds: float | None
    steps: int | None

    def is_spent(self, since: float, steps: int) -> bool:
        """Whether no further episode is to start."""
        out_of_time = self.seconds is not None and time.monotonic() - since >= self.seconds
        return out_of_time or (self.steps is not None and steps >= self.steps)


def executor_of(jobs: int) -> ProcessPoolExecutor:
    """Processes in which episodes run alike, wherever and whenever they do."""
    os.environ |= _CHILD_ENVIRONMENT
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_prepare)


class Soak:
    """Runs the episodes of a seed in several processes.

    Args:
        seed: with the number of an episode it decides everything.
        out: folder for the cases that failed.
        on_progress: told after every episode.
        on_failure: told of every episode that failed.
    """

    def __init__(
        self,
        seed: int,
        out: Path,
        *,
        on_progress: Callable[[Summary], None],
        on_failure: Callable[[Result], None],
    ) -> None:
        self._seed = seed
        self._out = out
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._summary = Summary(seed)
        self._since = time.monotonic()

    def run(self, episodes: Iterable[int], budget: Budget, jobs: int) -> Summary:
        """Run episodes while the budget lasts; an interrupt ends them, what is known is kept."""
        remaining = iter(episodes)
        with executor_of(jobs) as executor:
            pending: set[Future[Result]] = set()
            try:
                while True:
                    while len(pending) < jobs and not self._is_done(budget):
                        episode = next(remaining, None)
                        if episode is None:
                            break
                        arguments = self._seed, episode, self._out
                        pending.add(executor.submit(run_episode, *arguments))
                    if not pending:
                        break
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._note(future.result())
            except KeyboardInterrupt:
                self._summary.interrupted = True
                for process in executor._processes.values():
                    process.terminate()
        return self._summary

    def _is_done(self, budget: Budget) -> bool:
        too_many = len(self._summary.failures) >= _MAX_FAILURES
        return too_many or budget.is_spent(self._since, self._summary.steps)

    def _note(self, result: Result) -> None:
        self._summary.add(result)
        self._summary.seconds = time.monotonic() - self._since
        if result.failure is not None:
            self._on_failure(result)
        self._on_progress(self._summary)


def _prepare() -> None:
    """Of a child: import what takes long, and leave interrupts to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import tests.soak.episode  # noqa: F401

    logging.getLogger("vllm").setLevel(logging.CRITICAL)


def run_episode(seed: int, episode: int, out: Path) -> Result:
    """Run one episode in this process; if it fails, write the smallest case that does."""
    from tests.soak.episode import run
    from tests.soak.shrink import Shrinker

    result = run(seed, episode)
    if result.recording is None or result.failure is None:
        return result
    recording = Shrinker(result.recording, result.failure, SHRINK_S).shrink()
    recording.save(out / f"case-{recording.name}.json")
    return replace(result, recording=recording)


def replay_case(path: Path) -> Recording:
    """Replay a case in this process; return it with what went wrong this time."""
    from tests.soak.case import Recording
    from tests.soak.episode import replay

    recording = Recording.load(path)
    failure = replay(recording.case, recording.operations)
    return replace(recording, failure=failure.text if failure else "")
