# SPDX-License-Identifier: Apache-2.0
"""One run, in the process that it has to itself."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.cost.model import CostModel
from vllm_ascend_evaluation.replay.runs.job import CACHE_ROUTING, TIMESTAMPS, Job
from vllm_ascend_evaluation.replay.tier_use import DiskUse, TierUse
from vllm_ascend_evaluation.replay.trace import Workload
from vllm_ascend_evaluation.replay.variants import ASCEND_LAYOUTS, GPU_LAYOUT, RINGS_LAYOUT

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig
    from vllm.v1.core.sched.scheduler import Scheduler

    from vllm_ascend.dry_run.layouts import KVLayout
    from vllm_ascend.dry_run.scheduler import SchedulerOptions
    from vllm_ascend.dry_run.worker import Worker
    from vllm_ascend_evaluation.replay.results import RunResult
    from vllm_ascend_evaluation.replay.runs.arrivals import Arrivals
    from vllm_ascend_evaluation.replay.runs.clock import VirtualClock
    from vllm_ascend_evaluation.replay.runs.engine import ReplayLoop
    from vllm_ascend_evaluation.replay.runs.recorder import Recorder

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
    workload = job.workload.load().within(job.max_model_len)
    if job.kv_tokens is not None:  # counted before there are patches: for all variants alike
        job = replace(job, kv_memory_bytes=_memory(job, job.kv_tokens))
    if job.patched:
        import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    from vllm_ascend_evaluation.replay.runs.clock import VirtualClock
    from vllm_ascend_evaluation.replay.runs.engine import ReplayEngine, Restart

    if job.num_ranks > 1:
        return run_ranks(job, workload, on_progress)
    clock = VirtualClock()
    set_up_disk(job, clock)

    def start() -> tuple[Scheduler, Worker]:
        scheduler = build_job_scheduler(job)
        return scheduler, make_worker(job, scheduler)

    scheduler, worker = start()
    recorder = _recorder(job, scheduler, workload)
    restart = None if job.restart_at is None else Restart(job.restart_at, start)
    arrivals = _arrivals(job, workload)
    engine = ReplayEngine(scheduler, worker, arrivals, recorder, job.cost_model, clock, restart)
    complete, violations = _run_checked(engine, lambda: [engine.scheduler], on_progress)
    result = recorder.result(job, complete=complete, violations=violations)
    tier, disk = _use_of_tiers(job, engine.workers), _use_of_disk(job, engine.workers)
    return replace(result, tier=tier, disk=disk)


def run_ranks(job: Job, workload: Workload, on_progress: Callable[[int], None]) -> RunResult:
    """Run a job of several data-parallel ranks in this process; see :func:`run_job`."""
    from vllm_ascend_evaluation.replay.runs.balancer import Balancer
    from vllm_ascend_evaluation.replay.runs.clock import VirtualClock
    from vllm_ascend_evaluation.replay.runs.data_parallel import DataParallelEngine, Rank
    from vllm_ascend_evaluation.replay.runs.recorder import Recorder

    clock = VirtualClock()
    set_up_disk(job, clock)
    schedulers = [build_job_scheduler(job) for _ in range(job.num_ranks)]
    ranks = [Rank(s, make_worker(job, s), _recorder(job, s, workload)) for s in schedulers]
    balancer = Balancer(schedulers, by_cache=job.dp_routing == CACHE_ROUTING)
    arrivals, cost_model = _arrivals(job, workload), job.cost_model or CostModel()
    engine = DataParallelEngine(ranks, balancer, arrivals, cost_model, clock)
    complete, violations = _run_checked(engine, lambda: schedulers, on_progress)
    of_ranks = engine.result(job.dp_routing)
    whole = Recorder.of_ranks([rank.recorder for rank in ranks])
    workers = [rank.worker for rank in ranks]
    tier, disk = _use_of_tiers(job, workers), _use_of_disk(job, workers)
    result = whole.result(job, complete=complete, violations=violations)
    return replace(result, data_parallel=of_ranks, tier=tier, disk=disk)


def _recorder(job: Job, scheduler: Scheduler, workload: Workload) -> Recorder:
    from vllm_ascend_evaluation.replay.runs.recorder import Recorder

    return Recorder(scheduler, workload.num_requests, watches_memory=job.watches_memory)


def _arrivals(job: Job, workload: Workload) -> Arrivals:
    from vllm_ascend_evaluation.replay.runs.arrivals import ClosedLoop, TimestampArrivals

    if job.arrivals == TIMESTAMPS:
        return TimestampArrivals(workload, job.speed)
    return ClosedLoop(workload)


def _run_checked(
    loop: ReplayLoop,
    schedulers: Callable[[], Sequence[Scheduler]],
    on_progress: Callable[[int], None],
) -> tuple[bool, list[str]]:
    """Run a loop, and check the schedulers that it then has if it comes to its end.

    Returns:
        Whether it did, and what is wrong.
    """
    from vllm_ascend_evaluation.oracle import ContentViolation, IntegrityError, check_integrity
    from vllm_ascend_evaluation.replay.runs.engine import StalledError

    try:
        loop.run(on_progress)
    except KeyboardInterrupt:
        return False, []
    except (ContentViolation, StalledError) as violation:
        return False, [str(violation)]
    try:
        for scheduler in schedulers():
            check_integrity(scheduler.kv_cache_manager)
    except IntegrityError as violation:
        return True, [str(violation)]
    return True, []


def build_job_scheduler(job: Job) -> Scheduler:
    """Return the scheduler that a job asks for.

    Raises:
        BadInputError: The memory is too small, or a setting does not fit the layout.
    """
    from vllm_ascend.dry_run.scheduler import build_scheduler

    with _refusals(job):
        return build_scheduler(_layout(job), _options(job, kv_memory_bytes=job.kv_memory_bytes))


def _memory(job: Job, kv_tokens: int) -> int:
    from vllm_ascend.dry_run.scheduler import kv_memory_for

    with _refusals(job):
        return kv_memory_for(_layout(job), kv_tokens, _options(job, num_blocks=1))


def _options(
    job: Job, *, kv_memory_bytes: int | None = None, num_blocks: int | None = None
) -> SchedulerOptions:
    from vllm_ascend.dry_run.scheduler import SchedulerOptions

    return SchedulerOptions(
        kv_memory_bytes=kv_memory_bytes,
        num_blocks=num_blocks,
        max_num_seqs=job.max_num_seqs,
        max_num_batched_tokens=job.max_num_batched_tokens,
        max_model_len=job.max_model_len,
        num_speculative_tokens=job.num_speculative_tokens,
        draft_method=job.draft_method,
        is_data_parallel=job.num_ranks > 1,
        kv_transfer_config=_transfer_config(job),
    )


def _transfer_config(job: Job) -> KVTransferConfig | None:
    if job.tier_gib is None:
        return None
    from vllm_ascend_evaluation.replay.runs.tier import transfer_config

    return transfer_config(job)


def _use_of_tiers(job: Job, workers: Sequence[Worker]) -> TierUse | None:
    """Return what the tiers of all ranks, or of all engines in turn, did."""
    if job.tier_gib is None:
        return None
    from vllm_ascend_evaluation.replay.runs.tier import TierReplayWorker

    return TierUse.of_many(
        [worker.use() for worker in workers if isinstance(worker, TierReplayWorker)]
    )


def set_up_disk(job: Job, clock: VirtualClock) -> None:
    """Make the disk of a job, which outlives its engines."""
    if job.disk_gib is not None:
        from vllm_ascend_evaluation.replay.runs.disk import ModelledDisk, ReplayTierConnector

        ReplayTierConnector.disk = ModelledDisk(clock, job.disk_gib, job.disk_gib_per_second)


def _use_of_disk(job: Job, workers: Sequence[Worker]) -> DiskUse | None:
    if job.disk_gib is None:
        return None
    from vllm_ascend_evaluation.replay.runs.tier import disk_use

    return disk_use(workers)


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
    from vllm_ascend.dry_run import layouts

    # The MTP layer has its memory also where nothing is drafted, as in the checkpoint.
    num_draft_layers = layouts.DRAFT_LAYERS[job.draft_method]
    if job.layout in ASCEND_LAYOUTS:
        layout = layouts.dsv4_flash_a3(job.block_size, num_draft_layers=num_draft_layers)
        return layouts.in_rings(layout) if job.layout == RINGS_LAYOUT else layout
    if job.layout == GPU_LAYOUT:
        return layouts.dsv4_flash_gpu(num_draft_layers=num_draft_layers)
    return layouts.from_hf_config(Path(job.layout), job.block_size)


def make_worker(job: Job, scheduler: Scheduler) -> Worker:
    """Return what executes the steps that a job's scheduler makes."""
    if job.tier_gib is None:
        return _computing_worker(job, scheduler)
    from vllm_ascend_evaluation.replay.runs.tier import TierReplayWorker

    return TierReplayWorker(scheduler, _computing_worker(job, scheduler), job)


def _computing_worker(job: Job, scheduler: Scheduler) -> Worker:
    if not job.verify:
        from vllm_ascend.dry_run.worker import SamplingWorker

        return SamplingWorker(scheduler)
    from vllm_ascend.prefix_cache_config import load_config
    from vllm_ascend_evaluation.oracle import OracleOptions, ShadowWorker

    # Stock vLLM lets a request read state rows in the very step that writes them.
    strict = job.patched and load_config().changes_caching
    options = OracleOptions(strict_state=strict, strict_draft=strict)
    if job.tier_gib is None:
        return ShadowWorker(scheduler, options)
    from vllm_ascend_evaluation.replay.runs.tier_stamps import StampedTierWorker

    return StampedTierWorker(scheduler, options)
