# SPDX-License-Identifier: Apache-2.0
"""Plays workloads against a server that runs, and reports what its cache hit."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from vllm_ascend.replay.bounds import survey
from vllm_ascend.replay.commands import (
    EXIT_INTERRUPTED,
    EXIT_VIOLATION,
    bad_input_ends,
    load_workloads,
    say,
)
from vllm_ascend.replay.http_client import Answer, HttpClient, ServerError, base_url
from vllm_ascend.replay.http_options import HttpOptions
from vllm_ascend.replay.http_player import Played, Player
from vllm_ascend.replay.http_prompts import FittedWorkload, fit, only
from vllm_ascend.replay.http_results import HttpReport, HttpRun, HttpWorkload, count
from vllm_ascend.replay.job import WorkloadSource
from vllm_ascend.replay.report.http import http_png, print_http_report, write_http_html
from vllm_ascend.replay.report.json_file import write_json
from vllm_ascend.replay.results import Bounds
from vllm_ascend.replay.runner import no_interrupts
from vllm_ascend.replay.trace import BadInputError, Workload

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def replay_http(sources: list[WorkloadSource], options: HttpOptions) -> None:
    """Play workloads one after another and report; what is done is reported whatever happens.

    Raises:
        typer.Exit: Something went wrong or was interrupted; carries the exit code.
    """
    with bad_input_ends():
        url = base_url(options.url)
        options.check()
        if options.png is not None and not options.png.parent.is_dir():
            raise BadInputError(f"--png {options.png}: there is no folder {options.png.parent}")
        loaded = load_workloads(
            sources, needs_arrivals=options.is_open_loop, max_model_len=sys.maxsize
        )
        workloads = [fit(workload, options.shape) for workload in loaded.values()]
        options.out.mkdir(parents=True, exist_ok=True)
    with _progress() as progress:
        model, outcomes = asyncio.run(_play_all(url, workloads, options, progress))
    with no_interrupts(), bad_input_ends():
        report = _report(workloads, outcomes, model=model, url=url, options=options)
        _write(report, options)
    if report.failures:
        raise typer.Exit(EXIT_VIOLATION)
    if not report.complete:
        raise typer.Exit(EXIT_INTERRUPTED)


async def _play_all(
    url: str, workloads: list[FittedWorkload], options: HttpOptions, progress: Progress
) -> tuple[str, list[Played]]:
    """Return the model's name and what came of the workloads that were begun."""
    client = HttpClient(url, timeout_s=options.timeout_s)
    outcomes: list[Played] = []
    model = options.model or ""
    with _cancelled_by_signals():
        try:
            model = model or await client.first_model()
            for fitted in workloads:
                workload = fitted.workload
                task = progress.add_task(workload.name, total=workload.num_requests, hits="")
                player = Player(client, model, _shower(progress, task))
                outcomes.append(player.played)
                await player.play(workload, options.speed if options.is_open_loop else None)
                if player.played.is_cut_short:
                    break
        except ServerError as error:
            outcomes.append(Played(failure=str(error)))
        except asyncio.CancelledError:
            outcomes = outcomes or [Played()]
            outcomes[-1].interrupted = True
    await client.close()
    return model, outcomes


@contextlib.contextmanager
def _cancelled_by_signals() -> Iterator[None]:
    """Let the user cancel this task; behind it, an impatient one changes nothing."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.add_signal_handler(number, lambda: None)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.fields[hits]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True, emoji=False),
    )


def _shower(progress: Progress, task: TaskID) -> Callable[[Played], None]:
    hits = prompts = 0

    def show(played: Played) -> None:
        nonlocal hits, prompts
        newest = next(reversed(played.answers.values()))
        hits += newest.cached_tokens or 0
        prompts += newest.prompt_tokens
        rate = f"hits {100 * hits / prompts:.1f} %" if prompts else ""
        progress.update(task, completed=len(played.answers), hits=rate)

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
        run = _run(fitted.workload, played, model=model, url=url, options=options)
        reports.append(_workload_report(fitted, played.answers, run))
    return HttpReport(
        command=shlex.join(["python", "-m", "vllm_ascend", *sys.argv[1:]]),
        seed=options.shape.seed,
        workloads=tuple(reports),
        complete=not any(played.is_cut_short for played in outcomes),
        failures=tuple(played.failure for played in outcomes if played.failure is not None),
    )


def _run(
    workload: Workload, played: Played, *, model: str, url: str, options: HttpOptions
) -> HttpRun:
    closed = f"closed loop, {workload.concurrency} in flight"
    timed = f"timestamps, {options.speed:g} times as fast"
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
    fitted: FittedWorkload, answers: Mapping[int, Answer], run: HttpRun
) -> HttpWorkload:
    name, description = fitted.workload.name, fitted.workload.description
    if not answers:
        return HttpWorkload(name, description, "", Bounds(0.0, 0.0, {}), fitted.num_dropped, (run,))
    surveyed = survey(only(fitted.workload, answers.__contains__), ())
    return HttpWorkload(
        name, description, surveyed.digest, surveyed.bounds, fitted.num_dropped, (run,)
    )


def _write(report: HttpReport, options: HttpOptions) -> None:
    files = [options.out / "report.json", options.out / "report.html"]
    write_json(report, files[0])
    write_http_html(report, files[1])
    if options.png is not None:
        http_png(report, options.png)
    print_http_report(report, Console(emoji=False))
    for failure in report.failures:
        say("[bold red]failed:[/]", failure)
    if not report.complete:
        say("[yellow]incomplete:[/]", "the report is partial")
    say("written:", f"{files[0]}, {files[1]}")
