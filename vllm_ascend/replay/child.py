# SPDX-License-Identifier: Apache-2.0
"""The process of one run: a job on standard input, progress and the result on standard output.

Lines that start with one of the markers are ours; vLLM may print others.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_ascend.replay.job import TIMESTAMPS, Job
from vllm_ascend.replay.trace import BadInputError

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

    from vllm_ascend.replay.layouts import KVLayout
    from vllm_ascend.replay.results import RunResult
    from vllm_ascend.replay.worker import Worker

PROGRESS = "@progress "
RESULT = "@result "
BAD_INPUT = "@bad-input "
_SECONDS_BETWEEN_REPORTS = 0.2


def run_job(job: Job) -> RunResult:
    """Run a job in this process. An interrupt ends it early, with a partial result.

    Raises:
        BadInputError: The workload or a setting cannot be used.
    """
    workload = job.workload.load()
    if job.patched:
        import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    from vllm_ascend.oracle import ContentViolation, IntegrityError, check_integrity
    from vllm_ascend.replay.arrivals import ClosedLoop, TimestampArrivals
    from vllm_ascend.replay.engine import ReplayEngine, StalledError
    from vllm_ascend.replay.recorder import Recorder

    scheduler = build_job_scheduler(job)
    recorder = Recorder(scheduler, workload.num_requests)
    arrivals = TimestampArrivals if job.arrivals == TIMESTAMPS else ClosedLoop
    engine = ReplayEngine(
        scheduler, _make_worker(job, scheduler), arrivals(workload), recorder, job.cost_model
    )
    violations: list[str] = []
    complete = False
    try:
        engine.run(_Progress(workload.num_requests))
        complete = True
    except KeyboardInterrupt:
        pass
    except (ContentViolation, StalledError) as violation:
        violations.append(str(violation))
    try:
        if complete:
            check_integrity(scheduler.kv_cache_manager)
    except IntegrityError as violation:
        violations.append(str(violation))
    return recorder.result(job, complete=complete, violations=violations)


def build_job_scheduler(job: Job) -> Scheduler:
    """Return the scheduler that a job asks for.

    Raises:
        BadInputError: The memory is too small, or a setting does not fit the layout.
    """
    from vllm_ascend.replay.scheduler import SchedulerOptions, build_scheduler

    options = SchedulerOptions(
        kv_memory_bytes=job.kv_memory_bytes,
        max_num_seqs=job.max_num_seqs,
        max_num_batched_tokens=job.max_num_batched_tokens,
        max_model_len=job.max_model_len,
        num_speculative_tokens=job.num_speculative_tokens,
    )
    try:
        return build_scheduler(_layout(job), options)
    except ValueError as error:
        raise BadInputError(f"{job.variant} on {job.layout}: {error}") from error


def _layout(job: Job) -> KVLayout:
    from vllm_ascend.replay import layouts

    if job.layout == "dsv4-flash-a3":
        return layouts.dsv4_flash_a3(job.block_size)
    if job.layout == "dsv4-flash-gpu":
        return layouts.dsv4_flash_gpu()
    return layouts.from_hf_config(Path(job.layout), job.block_size)


def _make_worker(job: Job, scheduler: Scheduler) -> Worker:
    if not job.verify:
        from vllm_ascend.replay.worker import SamplingWorker

        return SamplingWorker(scheduler)
    from vllm_ascend.oracle import OracleOptions, ShadowWorker
    from vllm_ascend.prefix_cache_config import load_config

    # Stock vLLM lets a request read state rows in the very step that writes them.
    strict = job.patched and load_config().changes_caching
    return ShadowWorker(scheduler, OracleOptions(strict_state=strict, strict_draft=strict))


class _Progress:
    def __init__(self, total: int) -> None:
        self._total = total
        self._last = 0.0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_REPORTS or done == self._total:
            self._last = now
            print(f"{PROGRESS}{done} {self._total}", flush=True)


def main() -> int:
    """Run the job on standard input; return 2 if it cannot be run."""
    # Both: a command in the background of a script leaves its children deaf to interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = run_job(Job.from_json(sys.stdin.readline()))
    except BadInputError as error:
        print(f"{BAD_INPUT}{json.dumps(str(error))}", flush=True)
        return 2
    print(f"{RESULT}{json.dumps(asdict(result))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
