# SPDX-License-Identifier: Apache-2.0
"""Runs jobs side by side, each in its own process, and gathers what they found."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Protocol

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.command_line.interrupts import interrupts_call
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend_evaluation.replay.results import RunResult
from vllm_ascend_evaluation.replay.runs import fork_server
from vllm_ascend_evaluation.replay.runs.job import Job

_LINES_OF_ERROR = 20
_GRACE_SECONDS = 20.0


class Watcher(Protocol):
    """Is told what becomes of each job, by its index."""

    def advance(self, index: int, done: int) -> None:
        """So many of its requests are scheduled."""

    def finish(self, index: int, result: RunResult) -> None:
        """It ran, or what of it ran before the interrupt."""

    def drop(self, index: int, what: str) -> None:
        """It cannot be run, or its process died; ``what`` leaves the reason out."""


def _raise_refusal(index: int, reason: str) -> None:
    raise BadInputError(reason)


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
        watcher: Watcher,
        on_refusal: Callable[[int, str], None] = _raise_refusal,
    ) -> None:
        """Prepare.

        Args:
            num_parallel: Processes at a time.
            watcher: Told of all that happens.
            on_refusal: Told (index of the job, reason) of a job that cannot be run; what it
                raises ends the others. By default that is :class:`BadInputError`.
        """
        self._num_parallel = num_parallel
        self._watcher = watcher
        self._on_refusal = on_refusal
        self._jobs: Sequence[Job] = ()
        self._results: dict[int, RunResult] = {}
        self._failures: list[str] = []
        self._said: deque[str] = deque(maxlen=_LINES_OF_ERROR)
        self._interrupted = False

    def run(self, jobs: Sequence[Job]) -> Outcome:
        """Run all jobs. A keyboard interrupt stops them; what they measured so far is kept.

        Further interrupts change nothing, until our process ends; a process of the runs that does
        not answer in time is ended.

        Raises:
            BadInputError: A job cannot be run, and nobody said what to do then; the others are
                stopped.
        """
        self._jobs = jobs
        with _started() as server:
            lines = _Lines(server)
            with interrupts_call(partial(self._stop, server, lines)):
                _send(server, fork_server.request(jobs, self._num_parallel))
                for line in lines:
                    self._hear(line)
                exit_code = server.wait()
            if exit_code and not self._interrupted:
                self._failures.append(
                    f"the process of all runs ended with exit code {exit_code}:\n"
                    f"{''.join(self._said)}"
                )
        results = [self._results[index] for index in sorted(self._results)]
        return Outcome(results, self._interrupted, tuple(self._failures))

    def _stop(self, server: subprocess.Popen[str], lines: _Lines) -> None:
        self._interrupted = True
        server.send_signal(signal.SIGINT)
        lines.end_by(time.monotonic() + _GRACE_SECONDS)

    def _hear(self, line: str) -> None:
        if not line.startswith(fork_server.EVENT):
            self._said.append(line)
            return
        index, kind, value = json.loads(line.removeprefix(fork_server.EVENT))
        if kind == fork_server.PROGRESS:
            self._watcher.advance(index, value)
        elif kind == fork_server.RESULT:
            self._results[index] = RunResult.from_dict(value)
            self._watcher.finish(index, self._results[index])
        elif not self._interrupted:
            self._drop(index, kind, value)

    def _drop(self, index: int, kind: str, value: list | str) -> None:
        if kind == fork_server.REFUSED:
            assert isinstance(value, str)
            self._watcher.drop(index, "refused")
            self._on_refusal(index, value)
            return
        assert not isinstance(value, str)
        exit_code, said = value
        job = self._jobs[index]
        self._watcher.drop(index, f"ended with exit code {exit_code}")
        last = "\n".join(said.splitlines()[-_LINES_OF_ERROR:])
        self._failures.append(
            f"{job.workload.source} on {job.variant} ended with exit code {exit_code}:\n{last}"
        )


@contextlib.contextmanager
def _started() -> Iterator[subprocess.Popen[str]]:
    """Start the process of all runs; whatever is left of it and its forks ends with the block."""
    server = subprocess.Popen(
        [sys.executable, "-m", fork_server.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # An interrupt at the terminal goes to us; we pass it on once.
        start_new_session=True,
        env={**child_environment({}), "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    try:
        yield server
    finally:
        _kill(server)
        server.wait()


def _kill(server: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # nobody is left
        os.killpg(server.pid, signal.SIGKILL)


def _send(server: subprocess.Popen[str], line: str) -> None:
    assert server.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died; its exit code tells
        server.stdin.write(line + "\n")
        server.stdin.close()


class _Lines:
    """What a process prints, line by line, until its output ends."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        # Simple: a signal handler may put into it while it is in use.
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._deadline: float | None = None
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def end_by(self, deadline: float) -> None:
        """Kill the process and its session if it still runs then, by ``time.monotonic()``."""
        self._deadline = deadline
        self._lines.put("")  # wakes who waits without a deadline

    def __iter__(self) -> Iterator[str]:
        while (line := self._next()) is not None:
            yield line

    def _next(self) -> str | None:
        if self._deadline is None:
            return self._lines.get()
        try:
            return self._lines.get(timeout=max(self._deadline - time.monotonic(), 0.0))
        except queue.Empty:
            _kill(self._process)
            return self._lines.get()

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._lines.put(line)
        self._lines.put(None)
