# SPDX-License-Identifier: Apache-2.0
"""What is seen of runs while they run: on a terminal a live table, elsewhere a line per run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_ascend_evaluation.replay.results import RunResult
from vllm_ascend_evaluation.replay.runs.job import Job
from vllm_ascend_evaluation.replay.runs.runner import Watcher
from vllm_ascend_evaluation.replay.sources import WorkloadSource
from vllm_ascend_evaluation.replay.trace import Workload

# A screen holds so many rows; with more jobs only those at work show theirs.
_MAX_ROWS = 12
_GIB = 1 << 30


@contextlib.contextmanager
def watched(
    plan: Sequence[Job], workloads: Mapping[WorkloadSource, Workload], console: Console
) -> Iterator[Watcher]:
    """Show what is told while the block runs.

    Args:
        plan: The jobs.
        workloads: Tells how many requests each job has.
        console: Where to show it.
    """
    if not console.is_interactive:
        yield _Lines(plan, console)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[found]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        yield _Table(progress, plan, workloads)


def _names(plan: Sequence[Job]) -> list[str]:
    """Return what to call the jobs: workload and variant, and the memory where it differs."""
    has_memories = len({job.kv_memory_bytes for job in plan}) > 1

    def name(job: Job) -> str:
        memory = f"  {job.kv_memory_bytes / _GIB:g} GiB" if has_memories else ""
        return f"{job.workload.source}{memory}  {job.variant}"

    return [name(job) for job in plan]


def _found(result: RunResult) -> str:
    partial = "" if result.complete else ", partial"
    wrong = f", {len(result.violations)} WRONG" if result.violations else ""
    return f"hits {result.hit_rate:.2f} %{partial}{wrong}"


class _Lines:
    """A line per job, when it is over."""

    def __init__(self, plan: Sequence[Job], console: Console) -> None:
        self._names = _names(plan)
        self._console = console
        self._num_over = 0

    def advance(self, index: int, done: int) -> None:
        """Say nothing."""

    def finish(self, index: int, result: RunResult) -> None:
        """Say what it found."""
        self._say(
            index,
            f"{_found(result)} of {result.prompt_tokens:,} prompt tokens, "
            f"{result.num_requests:,} requests, {result.seconds:.1f} s",
        )

    def drop(self, index: int, what: str) -> None:
        """Say that there is nothing."""
        self._say(index, what)

    def _say(self, index: int, text: str) -> None:
        self._num_over += 1
        line = f"[{self._num_over}/{len(self._names)}] {self._names[index]}: {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Table:
    """A row per job: a bar, and what it found; of many jobs those at work, under a count.

    Where rows vanish, what they found is printed above.
    """

    def __init__(
        self,
        progress: Progress,
        plan: Sequence[Job],
        workloads: Mapping[WorkloadSource, Workload],
    ) -> None:
        self._progress = progress
        self._is_crowded = len(plan) > _MAX_ROWS
        self._lines = _Lines(plan, progress.console) if self._is_crowded else None
        self._num_over = 0
        self._all = progress.add_task(
            "all runs", total=len(plan), visible=self._is_crowded, found=""
        )
        self._tasks = [
            progress.add_task(
                name,
                total=workloads[job.workload].num_requests,
                start=False,
                visible=not self._is_crowded,
                found="",
            )
            for job, name in zip(plan, _names(plan), strict=True)
        ]

    def advance(self, index: int, done: int) -> None:
        """Move the bar."""
        self._progress.start_task(self._tasks[index])
        self._progress.update(self._tasks[index], completed=done, visible=True)

    def finish(self, index: int, result: RunResult) -> None:
        """Put what it found beside the bar."""
        self.advance(index, result.num_requests)
        self._end(index, _found(result))
        if self._lines is not None:
            self._lines.finish(index, result)

    def drop(self, index: int, what: str) -> None:
        """Put beside the bar that there is nothing."""
        self._end(index, what)
        if self._lines is not None:
            self._lines.drop(index, what)

    def _end(self, index: int, found: str) -> None:
        self._num_over += 1
        self._progress.update(self._all, completed=self._num_over)
        self._progress.stop_task(self._tasks[index])
        self._progress.update(self._tasks[index], found=found, visible=not self._is_crowded)
