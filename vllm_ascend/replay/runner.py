# SPDX-License-Identifier: Apache-2.0
"""Runs jobs side by side, each in its own process, and gathers what they found."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend.replay.child import BAD_INPUT, PROGRESS, RESULT
from vllm_ascend.replay.job import Job
from vllm_ascend.replay.results import RunResult
from vllm_ascend.replay.trace import BadInputError

_LINES_OF_ERROR = 20
_GRACE_SECONDS = 20.0


class _RunFailedError(RuntimeError):
    """A child process died without a result; the message carries the end of what it said."""


def _raise_refusal(index: int, reason: str) -> None:
    raise BadInputError(reason)


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """Finish what takes seconds: an impatient second Ctrl-C must not cost the results."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@dataclass(frozen=True)
class Outcome:
    """What came of the jobs.

    Attributes:
        results: In the order of the jobs; jobs that never ran are missing.
        interrupted: Whether the user stopped it.
        failures: Of jobs whose process died, what it said last.
    """

    results: list[RunResult]
    interrupted: bool
    failures: tuple[str, ...] = ()


class Runner:
    """Runs jobs, a few at a time."""

    def __init__(
        self,
        num_parallel: int,
        on_progress: Callable[[int, int, int], None],
        on_refusal: Callable[[int, str], None] = _raise_refusal,
    ) -> None:
        """Prepare.

        Args:
            num_parallel: Processes at a time.
            on_progress: Told (index of the job, requests done, requests in all).
            on_refusal: Told (index of the job, reason) of a job that cannot be run; what it
                raises ends the others. By default that is :class:`BadInputError`.
        """
        self._num_parallel = num_parallel
        self._on_progress = on_progress
        self._on_refusal = on_refusal
        self._children: dict[int, subprocess.Popen[str]] = {}
        self._failures: list[str] = []
        self._stopped = False

    def run(self, jobs: Sequence[Job]) -> Outcome:
        """Run all jobs. A keyboard interrupt stops them; what they measured so far is kept.

        Further interrupts change nothing; a process that does not answer in time is ended.

        Raises:
            BadInputError: A job cannot be run, and nobody said what to do then; the others are
                stopped.
        """
        interrupted = False
        with ThreadPoolExecutor(self._num_parallel) as executor:
            futures = [executor.submit(self._run_one, i, job) for i, job in enumerate(jobs)]
            try:
                # The first that cannot be run ends the others, wherever it stands among them.
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            except KeyboardInterrupt:
                interrupted = True
                self._stop(futures)
            except BaseException:
                self._stop(futures)
                raise
        results = [future.result() for future in futures]
        return Outcome(
            [result for result in results if result is not None], interrupted, tuple(self._failures)
        )

    def _stop(self, futures: Sequence[Future]) -> None:
        self._stopped = True
        with no_interrupts():
            self._signal(signal.SIGINT)
            wait(futures, timeout=_GRACE_SECONDS)
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for child in list(self._children.values()):
            child.send_signal(number)

    def _run_one(self, index: int, job: Job) -> RunResult | None:
        if self._stopped:
            return None
        try:
            return self._run_child(index, job)
        except _RunFailedError as failure:
            self._failures.append(str(failure))
            return None

    def _run_child(self, index: int, job: Job) -> RunResult | None:
        child = subprocess.Popen(
            [sys.executable, "-m", "vllm_ascend.replay.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # An interrupt at the terminal goes to us; we pass it on once.
            start_new_session=True,
            env={**child_environment(job.environment), "VLLM_LOGGING_LEVEL": "ERROR"},
        )
        self._children[index] = child
        if self._stopped:  # between the check above and now
            child.send_signal(signal.SIGINT)
        try:
            return self._talk(index, job, child)
        finally:
            del self._children[index]

    def _talk(self, index: int, job: Job, child: subprocess.Popen[str]) -> RunResult | None:
        assert child.stdin is not None and child.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it died; its exit code tells
            child.stdin.write(job.to_json() + "\n")
            child.stdin.close()
        said: deque[str] = deque(maxlen=_LINES_OF_ERROR)
        result = None
        for line in child.stdout:
            if line.startswith(PROGRESS):
                done, total = map(int, line.removeprefix(PROGRESS).split())
                self._on_progress(index, done, total)
            elif line.startswith(RESULT):
                result = RunResult.from_dict(json.loads(line.removeprefix(RESULT)))
            elif line.startswith(BAD_INPUT):
                child.wait()
                self._on_refusal(index, json.loads(line.removeprefix(BAD_INPUT)))
                return None
            else:
                said.append(line)
        child.wait()
        if result is None and not self._stopped:
            raise _RunFailedError(
                f"{job.workload.source} on {job.variant} ended with exit code "
                f"{child.returncode}:\n{''.join(said)}"
            )
        return result
