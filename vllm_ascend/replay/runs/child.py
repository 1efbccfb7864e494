# SPDX-License-Identifier: Apache-2.0
"""One run, in the process that it has to itself."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_ascend.replay.runs.job import TIMESTAMPS, Job
from vllm_ascend.replay.trace import BadInputError

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

    from vllm_ascend.replay.layouts import KVLayout
    from vllm_ascend.replay.results import RunResult
    from vllm_ascend.replay.scheduler import SchedulerOptions
    from vllm_ascend.replay.worker import Worker

# From vLLM's message: what one request of the longest length takes.
_NEEDED_GIB = re.compile(r"\(([\d.]+) GiB KV cache is needed")


def run_job(job: Job, on_progress: Callable[[int], None] = lambda done: None) -> RunResult:
    """Run a job in this process. An interrupt ends it early, with a partial result.

    Args:
        job: The job.
        on_progress: Told after every step how many requests were scheduled at least once.

    Raises:
        BadInputError: The workload or a setting cannot be used.
    """
    workload = job.workload.load()
    if job.kv_tokens is not None:  # counted before there are patches: for all variants alike
        job = replace(job, kv_memory_bytes=_memory(job, job.kv_tokens))
    if job.patched:
        import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    from vllm_ascend.oracle import ContentViolation, IntegrityError, check_integrity
    from vllm_ascend.replay.runs.arrivals import ClosedLoop, TimestampArrivals
    from vllm_ascend.replay.runs.engine import ReplayEngine, StalledError
    from vllm_ascend.replay.runs.recorder import Recorder

    scheduler = build_job_scheduler(job)
    recorder = Recorder(scheduler, workload.num_requests)
    arrivals = TimestampArrivals if job.arrivals == TIMESTAMPS else ClosedLoop
    engine = ReplayEngine(
        scheduler, _make_worker(job, scheduler), arrivals(workload), recorder, job.cost_model
    )
    violations: list[str] = []
    complete = False
    try:
        engine.run(on_progress)
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
    from vllm_ascend.replay.scheduler import build_scheduler

    with _refusals(job):
        return build_scheduler(_layout(job), _options(job, kv_memory_bytes=job.kv_memory_bytes))


def _memory(job: Job, kv_tokens: int) -> int:
    from vllm_ascend.replay.scheduler import kv_memory_for

    with _refusals(job):
        return kv_memory_for(_layout(job), kv_tokens, _options(job, num_blocks=1))


def _options(
    job: Job, *, kv_memory_bytes: int | None = None, num_blocks: int | None = None
) -> SchedulerOptions:
    from vllm_ascend.replay.scheduler import SchedulerOptions

    return SchedulerOptions(
        kv_memory_bytes=kv_memory_bytes,
        num_blocks=num_blocks,
        max_num_seqs=job.max_num_seqs,
        max_num_batched_tokens=job.max_num_batched_tokens,
        max_model_len=job.max_model_len,
        num_speculative_tokens=job.num_speculative_tokens,
    )


@contextlib.contextmanager
def _refusals(job: Job) -> Iterator[None]:
    """Say in one line why vLLM or a switch of ours does not take a job.

    Raises:
        BadInputError: In place of ``ValueError``.
    """
    try:
        yield
    except ValueError as error:
        needed = _NEEDED_GIB.search(str(error))
        reason = " ".join(str(error).split()) if needed is None else _too_small(job, needed[1])
        raise BadInputError(f"{job.variant} on {job.layout}: {reason}") from error


def _too_small(job: Job, needed_gib: str) -> str:
    gib = f"{job.kv_memory_bytes / (1 << 30):.3g}"
    given = f"--kv-gib {gib}" if job.kv_tokens is None else f"--kv-tokens {job.kv_tokens}"
    return (
        f"{given}: a request of --max-model-len {job.max_model_len} tokens needs {needed_gib} GiB "
        "of KV cache: give more, or a smaller --max-model-len"
    )


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
