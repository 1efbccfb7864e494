# SPDX-License-Identifier: Apache-2.0
"""What the commands share: loading, running with progress bars, ends and exit codes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.command_line.ends import EXIT_INTERRUPTED, EXIT_VIOLATION, error_console, say
from vllm_ascend.deployment import vllm_distribution
from vllm_ascend.releases import describe_supported, find_release
from vllm_ascend.server_access.access import without_secrets
from vllm_ascend_evaluation.replay.bounds import survey
from vllm_ascend_evaluation.replay.cost.model import CostModel
from vllm_ascend_evaluation.replay.curves.lines import policy_rates, with_rest_rates
from vllm_ascend_evaluation.replay.outputs import spare_finished
from vllm_ascend_evaluation.replay.results import ReplayReport, RunResult, WorkloadReport
from vllm_ascend_evaluation.replay.runs.job import DRAFT_METHODS, Job, RunSettings
from vllm_ascend_evaluation.replay.runs.progress import watched
from vllm_ascend_evaluation.replay.runs.runner import Outcome, Runner
from vllm_ascend_evaluation.replay.sources import WorkloadSource
from vllm_ascend_evaluation.replay.trace import Workload
from vllm_ascend_evaluation.replay.variants import (
    Variant,
    check_layout,
    fit_block_size,
    parse_variants,
)

GIB = 1 << 30


def load_workloads(
    sources: Iterable[WorkloadSource], *, max_model_len: int, needs_arrivals: bool = False
) -> dict[WorkloadSource, Workload]:
    """Open and check all workloads before anything runs, and say what is left out of them.

    Args:
        sources: Where they come from.
        max_model_len: What a prompt and its answer may have together, in tokens.
        needs_arrivals: Whether the time of every request must be known; else times mean nothing.

    Returns:
        The workloads, by the source from which every run reads its own.

    Raises:
        BadInputError: Names the source and what is wrong with it.
    """
    workloads = {}
    for given in dict.fromkeys(sources):
        source = given.prepared(uses_times=needs_arrivals and given.poisson_rate is None)
        workload = source.load().within(max_model_len)
        if needs_arrivals:
            workload.check_arrivals()
        if workload.num_left_out:
            say(
                "[yellow]note:[/]",
                f"{workload.name}: {workload.num_left_out:,} of "
                f"{workload.num_left_out + workload.num_requests:,} requests have more tokens with "
                f"their answer than --max-model-len {max_model_len} and are left out",
            )
        if not needs_arrivals and Path(source.source).exists() and _start_together(workload):
            say(
                "[yellow]note:[/]",
                f"{workload.name}: all {workload.num_requests} requests start together, so a "
                "request hits nothing that another one is computing: --concurrency 1 sends them "
                "one by one",
            )
        workloads[source] = workload
    return workloads


def _start_together(workload: Workload) -> bool:
    """Whether several requests are all in flight at once: none waits for another one's answer."""
    if not 1 < workload.num_requests <= workload.concurrency:
        return False
    return all(request.think_ms is None for request in workload.requests())


def sources_of(
    names: Iterable[str],
    seed: int,
    concurrency: int | None = None,
    max_requests: int | None = None,
    max_output_tokens: int | None = None,
    tokenizer: str | None = None,
    poisson_rate: float | None = None,
) -> list[WorkloadSource]:
    """Return where the requests of some workloads come from.

    Args:
        names: As ``--workload`` takes them.
        seed: See :class:`WorkloadSource`, as for the others.
        concurrency: Requests in flight.
        max_requests: Of each workload.
        max_output_tokens: Cap on answers.
        tokenizer: Folder, for files that hold text.
        poisson_rate: Requests per second that come at random.
    """
    shared = (seed, concurrency, max_requests, max_output_tokens, tokenizer)
    return [WorkloadSource(name, *shared, poisson_rate=poisson_rate) for name in names]


def variants_of(texts: Sequence[str], layout: str) -> list[Variant]:
    """Return what ``--variant`` names, and say what is left out or not quite what was asked for.

    Raises:
        BadInputError: A text is malformed or a value is not allowed.
    """
    variants, remarks = parse_variants(texts, layout)
    for remark in remarks:
        say("[yellow]note:[/]", remark)
    return variants


def make_job(source: WorkloadSource, variant: Variant, settings: RunSettings) -> Job:
    """Return the run of a workload on a variant.

    Args:
        source: The workload.
        variant: Its layout and block size, if it has any, come before those of the settings.
        settings: Of the command.

    Raises:
        BadInputError: There is no such layout, it has no such block size, or limits contradict each
            other.
    """
    settings.check()
    layout, size = variant.layout or settings.layout, variant.block_size or settings.block_size
    of_variant = f"--variant {variant.name}: "
    check_layout(layout, f"{of_variant}layout" if variant.layout else "--layout")
    size_option = f"{of_variant}block_size" if variant.block_size else "--block-size"
    block_size = fit_block_size(layout, size, size_option)
    return Job(
        **vars(replace(settings, layout=layout, block_size=block_size)),
        variant=variant.name,
        patched=variant.patched,
        environment=variant.environment | settings.environment_of_ranks,
        workload=source,
        description=variant.description,
    )


def run_jobs(
    plan: Sequence[Job],
    num_parallel: int,
    workloads: Mapping[WorkloadSource, Workload],
    on_refusal: Callable[[int, str], None] | None = None,
) -> Outcome:
    """Run all jobs, and show what becomes of each as it ends.

    Args:
        plan: The jobs, of the given workloads.
        num_parallel: Processes at a time.
        workloads: Tells how many requests each job has.
        on_refusal: See :class:`Runner`.

    Raises:
        BadInputError: A job cannot be run and ``on_refusal`` is not given.
    """
    refusal = {} if on_refusal is None else {"on_refusal": on_refusal}
    with watched(plan, workloads, error_console) as watcher:
        return Runner(num_parallel, watcher, **refusal).run(plan)


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


def make_report(
    workloads: Mapping[WorkloadSource, Workload],
    outcome: Outcome,
    *,
    seed: int,
    cost_model: CostModel | None = None,
    with_policies: bool = False,
    is_timed: bool = False,
) -> ReplayReport:
    """Return the outcome per workload that ran at all, with the workload's bounds.

    Args:
        workloads: All of them.
        outcome: What came of the runs.
        seed: Of generated prompts.
        cost_model: Of times to first token.
        with_policies: Whether also to say what textbook policies would hit, in seconds.
        is_timed: Whether requests arrived at their times.
    """
    return ReplayReport(
        command=command_line(),
        seed=seed,
        vllm_version=_vllm_version(),
        cost_model={} if cost_model is None else cost_model.parameters(),
        workloads=tuple(
            _workload_report(workload, runs, with_policies=with_policies, is_timed=is_timed)
            for source, workload in workloads.items()
            if (runs := [run for run in outcome.results if run.workload == source.source])
        ),
        complete=not outcome.interrupted and not outcome.failures,
        failures=outcome.failures,
    )


def _workload_report(
    workload: Workload, runs: Sequence[RunResult], *, with_policies: bool, is_timed: bool
) -> WorkloadReport:
    surveyed = survey(workload, sorted({run.alignment_tokens for run in runs}))
    description = workload.in_words(is_timed=is_timed)
    known = with_rest_rates(workload, runs)
    return WorkloadReport(
        *(workload.name, description, surveyed.digest, surveyed.bounds, known),
        policy_rates(workload, runs) if with_policies else {},
        workload.num_left_out,
    )


def command_line() -> str:
    """Return the command as it was given, but for an API key."""
    return shlex.join(["python", "-m", "vllm_ascend", *without_secrets(sys.argv[1:])])


def _vllm_version() -> str:
    # Of the installed distribution: importing vLLM here would cost seconds.
    found = vllm_distribution()
    return found.version if found is not None else "unknown"


def drafts_of(drafts: str | None, mtp: int) -> tuple[str, int]:
    """Return the method and the draft tokens per step that ``--drafts`` or ``--mtp`` asks for.

    Raises:
        BadInputError: Both do, or it is no method and number, or the running vLLM lacks it.
    """
    if drafts is None:
        return "mtp", mtp
    if mtp:
        raise BadInputError(f"--drafts {drafts} and --mtp {mtp}: give one of them")
    method, _, number = drafts.partition(":")
    if method not in DRAFT_METHODS or not number.isdecimal() or not 0 < int(number) <= 32:
        raise BadInputError(
            f"--drafts {drafts}: expected {' or '.join(f'{name}:N' for name in DRAFT_METHODS)}, "
            "N from 1 to 32 draft tokens per step"
        )
    running = _vllm_version()
    release = find_release(running)
    if method == "dspark" and not (release and release.has_dspark):
        raise BadInputError(
            f"--drafts {drafts}: vLLM {running} has no DSpark; vLLM 0.30.0 has (in a clone of the "
            "project: make replay VLLM=0.30.0)"
        )
    return method, int(number)


def check_release(release: str | None) -> None:
    """Refuse to measure with another vLLM than was asked for.

    Raises:
        BadInputError: It is not supported, or this Python runs another one.
    """
    if release is None:
        return
    if find_release(release) is None:
        raise BadInputError(f"--release {release}: supported are vLLM {describe_supported()}")
    running = _vllm_version()
    if find_release(running) is not find_release(release):
        raise BadInputError(
            f"--release {release}: this Python runs vLLM {running}; use the one of vLLM {release} "
            f"(in a clone of the project: make replay VLLM={release})"
        )


def say_what_went_wrong(report: ReplayReport) -> None:
    """Name every violation and failure, and say if the report is partial."""
    for violation in report.violations:
        say("[bold red]violation:[/]", violation)
    for failure in report.failures:
        say("[bold red]failed:[/]", failure)
    if report.workloads and not report.complete:
        say("[yellow]incomplete:[/]", "the report is partial")


def say_written(files: Sequence[Path]) -> None:
    """Name every file of a report."""
    say("written:", ", ".join(map(str, files)) or "nothing, for nothing was measured")


def write_and_end(
    report: ReplayReport,
    files: Sequence[Path | None],
    write: Callable[..., None],
) -> None:
    """Write a report, say what is in it and where it is, and end the command.

    A partial report does not replace a finished one, and an empty one nothing at all.

    Args:
        report: What all runs found.
        files: Where to write it, JSON first; ``None`` for a file that is not wanted.
        write: Prints the report and writes it to these files.

    Raises:
        typer.Exit: Something is wrong or was interrupted; carries the exit code.
    """
    files = spare_finished(files, complete=report.complete) if report.workloads else []
    if files:
        write(*files)
    say_what_went_wrong(report)
    say_written([file for file in files if file is not None])
    if report.violations or report.failures:
        raise typer.Exit(EXIT_VIOLATION)
    if not report.complete:
        raise typer.Exit(EXIT_INTERRUPTED)
