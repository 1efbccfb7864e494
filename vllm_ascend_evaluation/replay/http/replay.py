# SPDX-License-Identifier: Apache-2.0
"""Plays workloads against a server that runs, and reports what its cache hit."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from vllm_ascend.command_line.ends import EXIT_BAD_INPUT, EXIT_INTERRUPTED, bad_input_ends, say
from vllm_ascend.command_line.interrupts import interrupts_call, no_interrupts
from vllm_ascend.server_access.access import base_url
from vllm_ascend_evaluation.replay.bounds import survey
from vllm_ascend_evaluation.replay.commands import command_line, load_workloads, say_written
from vllm_ascend_evaluation.replay.http.client import Answer, HttpClient
from vllm_ascend_evaluation.replay.http.options import HttpOptions
from vllm_ascend_evaluation.replay.http.player import Played, Player
from vllm_ascend_evaluation.replay.http.prompts import FittedWorkload, fit, only
from vllm_ascend_evaluation.replay.http.refusals import choose_model, explain
from vllm_ascend_evaluation.replay.http.results import (
    HttpReport,
    HttpRun,
    HttpWorkload,
    are_taken_over,
    count,
)
from vllm_ascend_evaluation.replay.outputs import check_folder, prepare_folder, spare_finished
from vllm_ascend_evaluation.replay.report.http import http_png, print_http_report, write_http_html
from vllm_ascend_evaluation.replay.report.json_file import write_json
from vllm_ascend_evaluation.replay.sources import WorkloadSource
from vllm_ascend_evaluation.replay.trace import Workload

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def replay_http(sources: list[WorkloadSource], options: HttpOptions) -> None:
    """Play workloads one after another and report; what is done is reported whatever happens.

    Raises:
        typer.Exit: Something went wrong or was interrupted; carries the exit code.
    """
    with bad_input_ends():
        url = base_url(options.url)
        options.check()
        check_folder(options.out, {"--png": options.png})
        loaded = load_workloads(
            sources, needs_arrivals=options.is_open_loop, max_model_len=sys.maxsize
        )
        workloads = [fit(workload, options.shape) for workload in loaded.values()]
        model = asyncio.run(choose_model(url, options))
        workloads = [fitted.within(model.max_model_len) for fitted in workloads]
        prepare_folder(options.out, {"--png": options.png})
    with _progress() as progress:
        outcomes = asyncio.run(_play_all(url, model.name, workloads, options, progress))
    with no_interrupts(), bad_input_ends():
        report = _report(workloads, outcomes, model=model.name, url=url, options=options)
        _write(report, options)
    if report.failures:
        raise typer.Exit(EXIT_BAD_INPUT)
    if not report.complete:
        raise typer.Exit(EXIT_INTERRUPTED)


async def _play_all(
    url: str,
    model: str,
    workloads: list[FittedWorkload],
    options: HttpOptions,
    progress: Progress,
) -> list[Played]:
    """Return what came of the workloads that were begun."""
    client = HttpClient(url, timeout_s=options.timeout_s, access=options.access)
    outcomes: list[Played] = []
    task = asyncio.current_task()
    assert task is not None
    cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
    with interrupts_call(cancel, _SIGNALS):
        try:
            for fitted in workloads:
                workload = fitted.workload
                bar = progress.add_task(workload.name, total=workload.num_requests, hits="")
                player = Player(client, model, _shower(progress, bar))
                outcomes.append(player.played)
                await player.play(workload, options.speed if options.is_open_loop else None)
                _say_done(progress.console, workload, player.played)
                if player.played.is_cut_short:
                    break
        except asyncio.CancelledError:
            outcomes = outcomes or [Played()]
            outcomes[-1].interrupted = True
    await client.close()
    return outcomes


def _progress() -> Progress:
    console = Console(stderr=True, emoji=False)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.fields[hits]}"),
        TimeElapsedColumn(),
        console=console,
        # Elsewhere a line per workload says what it found.
        disable=not console.is_interactive,
    )


def _say_done(console: Console, workload: Workload, played: Played) -> None:
    if not console.is_interactive:
        line = (
            f"{workload.name}: {_hits(played)}, {len(played.answers):,} of "
            f"{workload.num_requests:,} requests answered, {played.seconds:.1f} s"
        )
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _hits(played: Played) -> str:
    hits = sum(answer.cached_tokens or 0 for answer in played.answers.values())
    prompts = sum(answer.prompt_tokens for answer in played.answers.values())
    if are_taken_over(list(played.answers.values())):
        return "no hits told"
    return f"hits {100 * hits / prompts:.1f} %" if prompts else "no hits"


def _shower(progress: Progress, task: TaskID) -> Callable[[Played], None]:
    def show(played: Played) -> None:
        progress.update(task, completed=len(played.answers), hits=_hits(played))

    return show


def _report(
    workloads: list[FittedWorkload],
    outcomes: list[Played],
    *,
    model: str,
    url: str,
    options: HttpOptions,
) -> HttpReport:
    reports = []
    for fitted, played in zip(workloads, outcomes, strict=False):
        if not played.answers:
            continue
        run = _run(fitted.workload, played, model=model, url=url, options=options)
        description = fitted.workload.in_words(is_timed=options.is_open_loop)
        reports.append(_workload_report(fitted, description, played.answers, run))
    return HttpReport(
        command=command_line(),
        seed=options.shape.seed,
        workloads=tuple(reports),
        complete=not any(played.is_cut_short for played in outcomes),
        failures=tuple(
            explain(played.failure, options) for played in outcomes if played.failure is not None
        ),
    )


def _run(
    workload: Workload, played: Played, *, model: str, url: str, options: HttpOptions
) -> HttpRun:
    closed = f"closed loop, {workload.concurrency} in flight"
    own_times = f"timestamps, {options.speed:g} times as fast"
    timed = own_times if workload.when == Workload.when else workload.when
    return HttpRun(
        variant=model or "?",
        url=url,
        workload=workload.name,
        arrivals=timed if options.is_open_loop else closed,
        vocab_size=options.shape.vocab_size,
        scale=options.shape.scale,
        seconds=played.seconds,
        complete=not played.is_cut_short,
        **count(played.answers, played.sent),
    )


def _workload_report(
    fitted: FittedWorkload, description: str, answers: Mapping[int, Answer], run: HttpRun
) -> HttpWorkload:
    name = fitted.workload.name
    surveyed = survey(only(fitted.workload, answers.__contains__), ())
    return HttpWorkload(
        name, description, surveyed.digest, surveyed.bounds, fitted.num_dropped, (run,)
    )


def _write(report: HttpReport, options: HttpOptions) -> None:
    files: list[Path | None] = []
    if report.workloads:
        wanted = (options.out / "report.json", options.out / "report.html", options.png)
        files = spare_finished(wanted, complete=report.complete)
        json, html, png = files
        assert json is not None and html is not None
        write_json(report, json)
        print_http_report(report, Console(emoji=False))
        write_http_html(report, html)
        if png is not None:
            http_png(report, png)
    for failure in report.failures:
        say("[bold red]failed:[/]", failure)
    if report.workloads and not report.complete:
        say("[yellow]incomplete:[/]", "the report is partial")
    say_written([file for file in files if file is not None])
