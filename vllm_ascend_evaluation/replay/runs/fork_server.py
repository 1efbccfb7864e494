# SPDX-License-Identifier: Apache-2.0
"""The process of all runs: it imports vLLM once and forks for every run.

Patches cannot be taken off again, and the variables of one run must not reach another: every run
needs a process of its own. Importing vLLM in each of them would take longer than most runs.

The jobs are the first line on standard input. Events are those lines on standard output that start
with :data:`EVENT`; vLLM may print others.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import IO, Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.prefix_cache_config import become_child
from vllm_ascend_evaluation.replay.results import RunResult
from vllm_ascend_evaluation.replay.runs.job import Job

EVENT = "@event "
# What an event is; its last value is of this kind.
PROGRESS = "progress"  # number of requests scheduled
RESULT = "result"  # a RunResult as a dictionary
REFUSED = "refused"  # why the job cannot be run
DIED = "died"  # exit code, and what the process said last

_CHARACTERS_OF_ERROR = 4000
_SECONDS_BETWEEN_REPORTS = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_fork = multiprocessing.get_context("fork")

RunJob = Callable[[Job, Callable[[int], None]], RunResult]


@dataclass
class _Run:
    """A run that is under way.

    Attributes:
        index: Of its job.
        process: Its process.
        said: What the process prints.
        is_told: Whether its result or refusal has come.
    """

    index: int
    process: BaseProcess
    said: IO[str]
    is_told: bool = False


class ForkServer:
    """Runs jobs, each in a fork of this process, a few at a time."""

    def __init__(self, jobs: Iterable[Job], num_parallel: int, run_job: RunJob) -> None:
        """Prepare.

        Args:
            jobs: The jobs.
            num_parallel: Forks at a time.
            run_job: Runs a job in the fork; told whom to tell of progress.
        """
        self._waiting = deque(enumerate(jobs))
        self._num_parallel = num_parallel
        self._run_job = run_job
        self._running: dict[Connection, _Run] = {}

    def serve(self) -> None:
        """Run all jobs and tell of each; an interrupt ends those at work and starts no other."""
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        while self._fill():
            for messages in wait(list(self._running)):
                assert isinstance(messages, Connection)
                self._hear(messages)

    def _stop(self, *_: object) -> None:
        self._waiting.clear()
        for run in self._running.values():
            run.process.terminate()

    def _fill(self) -> bool:
        """Start what may start; return whether anything is at work."""
        # Blocked: a fork that is not yet among the running ones would miss the interrupt.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        while self._waiting and len(self._running) < self._num_parallel:
            self._start(*self._waiting.popleft())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return bool(self._running)

    def _start(self, index: int, job: Job) -> None:
        messages, of_fork = _fork.Pipe(duplex=False)
        said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - see _end
        # daemon: should this process end, so do its forks.
        process = _fork.Process(
            target=_be_fork, args=(job, self._run_job, of_fork, said), daemon=True
        )
        process.start()
        of_fork.close()
        self._running[messages] = _Run(index, process, said)

    def _hear(self, messages: Connection) -> None:
        run = self._running[messages]
        try:
            kind, value = messages.recv()
        except EOFError:
            del self._running[messages]
            messages.close()
            self._end(run)
            return
        run.is_told = run.is_told or kind != PROGRESS
        _tell(run.index, kind, value)

    def _end(self, run: _Run) -> None:
        run.process.join()
        if not run.is_told:
            run.said.seek(0)
            said = run.said.read()[-_CHARACTERS_OF_ERROR:]
            _tell(run.index, DIED, (run.process.exitcode, said))
        run.said.close()


def _tell(index: int, kind: str, value: Any) -> None:
    print(f"{EVENT}{json.dumps((index, kind, value))}", flush=True)


def _be_fork(job: Job, run_job: RunJob, messages: Connection, said: IO[str]) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    sys.stdout = sys.stderr = said
    for descriptor in (1, 2):  # what is not Python's prints, too
        os.dup2(said.fileno(), descriptor)
    become_child(job.environment)
    try:
        result = run_job(job, _Reporter(messages))
    except BadInputError as error:
        messages.send((REFUSED, str(error)))
    else:
        messages.send((RESULT, asdict(result)))


class _Reporter:
    """Sends how far a run is, a few times a second."""

    def __init__(self, messages: Connection) -> None:
        self._messages = messages
        self._last = 0.0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_REPORTS:
            self._last = now
            self._messages.send((PROGRESS, done))


def request(jobs: Sequence[Job], num_parallel: int) -> str:
    """Return the line that a server is to be given."""
    return json.dumps({"num_parallel": num_parallel, "jobs": [job.to_json() for job in jobs]})


def main(prepare: Callable[[], None], run_job: RunJob) -> None:
    """Serve the request on standard input.

    Args:
        prepare: Does what all runs have in common.
        run_job: See :class:`ForkServer`.
    """
    # Both: a command in the background of a script leaves its children deaf to interrupts.
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler)
    try:
        asked = json.loads(sys.stdin.readline())
        prepare()
    except KeyboardInterrupt:
        return
    # Collected once here: no fork need look through it, or copy it, again.
    gc.collect()
    gc.freeze()
    ForkServer(map(Job.from_json, asked["jobs"]), asked["num_parallel"], run_job).serve()


def _import_vllm() -> None:
    """Import what every run needs; the patches are none of it."""
    import vllm_ascend.dry_run.scheduler
    import vllm_ascend.dry_run.worker  # noqa: F401
    import vllm_ascend_evaluation.oracle
    import vllm_ascend_evaluation.replay.runs.arrivals
    import vllm_ascend_evaluation.replay.runs.engine
    import vllm_ascend_evaluation.replay.runs.recorder  # noqa: F401

    # Importing them installs them; their table alone changes nothing.
    is_patched = any(name.startswith("vllm_ascend.patch.platform") for name in sys.modules)
    assert not is_patched, "the patches would be in every fork, those of stock vLLM, too"


if __name__ == "__main__":
    from vllm_ascend_evaluation.replay.runs.child import run_job

    main(_import_vllm, run_job)
