# SPDX-License-Identifier: Apache-2.0
"""Runs jobs side by side, each in its own process, and gathers what they found."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from vllm_ascend.envs import child_environment
from vllm_ascend.replay.child import BAD_INPUT, PROGRESS, RESULT
from vllm_ascend.replay.job import Job
from vllm_ascend.replay.results import RunResult
from vllm_ascend.replay.trace import BadInputError

_LINES_OF_ERROR = 20


class RunFailedError(RuntimeError):
    """A child process died without a result; the message carries the end of what it said."""


@dataclass(frozen=True)
class Outcome:
    """What came of the jobs.

    Attributes:
        results: In the order of the jobs; jobs that never ran are missing.
        interrupted: Whether the user stopped it.
    """

    results: list[RunResult]
    interrupted: bool


class Runner:
    """Runs jobs, a few at a time."""

    def __init__(self, num_parallel: int, on_progress: Callable[[int, int, int], None]) -> None:
        """Prepare.

        Args:
            num_parallel: Processes at a time.
            on_progress: Told (index of the job, requests done, requests in all).
        """
        self._num_parallel = num_parallel
        self._on_progress = on_progress
        self._children: dict[int, subprocess.Popen[str]] = {}
        self._stopped = False

    def run(self, jobs: Sequence[Job]) -> Outcome:
        """Run all jobs. A keyboard interrupt stops them; what they measured so far is kept.

        Raises:
            BadInputError: A job cannot be run; the others are stopped.
            RunFailedError: A child process died.
        """
        interrupted = False
        with ThreadPoolExecutor(self._num_parallel) as executor:
            futures = [executor.submit(self._run_one, i, job) for i, job in enumerate(jobs)]
            try:
                for future in futures:
                    future.result()
            except KeyboardInterrupt:
                interrupted = True
                self._stop()
            except BaseException:
                self._stop()
                raise
        results = [future.result() for future in futures if not future.cancelled()]
        return Outcome([result for result in results if result is not None], interrupted)

    def _stop(self) -> None:
        self._stopped = True
        for child in list(self._children.values()):
            child.send_signal(signal.SIGINT)

    def _run_one(self, index: int, job: Job) -> RunResult | None:
        if self._stopped:
            return None
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
        try:
            return self._talk(index, job, child)
        finally:
            del self._children[index]

    def _talk(self, index: int, job: Job, child: subprocess.Popen[str]) -> RunResult | None:
        assert child.stdin is not None and child.stdout is not None
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
                raise BadInputError(json.loads(line.removeprefix(BAD_INPUT)))
            else:
                said.append(line)
        child.wait()
        if result is None and not self._stopped:
            raise RunFailedError(
                f"{job.workload.source} on {job.variant} ended with exit code "
                f"{child.returncode}:\n{''.join(said)}"
            )
        return result
