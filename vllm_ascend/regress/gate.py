# SPDX-License-Identifier: Apache-2.0
"""Runs the steps, judges them, writes the report, and ends with what it found."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace

import typer
from rich.console import Console

from vllm_ascend.regress.journal import Journal
from vllm_ascend.regress.judge import judge
from vllm_ascend.regress.notes import notes_on
from vllm_ascend.regress.options import Options
from vllm_ascend.regress.process import ToolError
from vllm_ascend.regress.report import RegressReport, print_report, write_report
from vllm_ascend.regress.results import ACCURACY, PERFORMANCE, Measured
from vllm_ascend.regress.server import Server
from vllm_ascend.regress.steps import Run, measure_accuracy, measure_performance
from vllm_ascend.replay.commands import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    EXIT_VIOLATION,
    bad_input_ends,
    say,
)
from vllm_ascend.replay.http_client import ServerError
from vllm_ascend.replay.report.json_file import write_json
from vllm_ascend.replay.trace import BadInputError


def run_gate(options: Options) -> None:
    """Measure what is not measured yet, compare, and report.

    Raises:
        typer.Exit: There is a regression, something failed or was interrupted; carries the code.
    """
    with bad_input_ends(), _failures_end(options):
        if options.save_baseline is not None and not options.save_baseline.parent.is_dir():
            folder = options.save_baseline.parent
            raise BadInputError(f"--save-baseline {options.save_baseline}: there is no {folder}")
        baseline = options.read_baseline()
        measured, kept = _measure(options)
        report = RegressReport(
            command=shlex.join(["python", "-m", "vllm_ascend", *sys.argv[1:]]),
            measured=measured,
            baseline=str(options.baseline_file or ""),
            verdicts=judge(measured, baseline, options.tolerances),
            notes=[*kept, *notes_on(measured, baseline)],
        )
        _write(report, options)
    if report.regressions:
        raise typer.Exit(EXIT_VIOLATION)


def _measure(options: Options) -> tuple[Measured, list[str]]:
    """Return what the suite measured, and notes on what had been measured before."""
    server = Server(options.url)
    model = server.model(options.model)
    options.check_fits(model)
    tokenizer = options.find_tokenizer(model)
    server.counters()  # if they cannot be read, say so before the load and not behind it
    journal = Journal(options.out, server.target(model), restart=options.restart)
    run = Run(server, journal, tokenizer, options.timeout_s)
    kept = [
        f"{step} was measured at {result.finished} and is kept (--restart measures anew)"
        for step in (PERFORMANCE, ACCURACY)
        if getattr(options, step) is not None
        and (result := getattr(journal.measured, step)) is not None
    ]
    for note in kept:
        say("[yellow]note:[/]", note)
    if options.performance is not None:
        measure_performance(run, options.performance)
    if options.accuracy is not None and options.gpqa is not None:
        measure_accuracy(run, options.accuracy, options.gpqa)
    measured = replace(
        journal.measured,
        performance=journal.measured.performance if options.performance else None,
        accuracy=journal.measured.accuracy if options.accuracy else None,
    )
    return measured, kept


@contextlib.contextmanager
def _failures_end(options: Options) -> Iterator[None]:
    """End the command with one message if the server or a tool fails or the user interrupts.

    Raises:
        typer.Exit: In place of ``ServerError``, ``ToolError`` and ``KeyboardInterrupt``.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    go_on = f"what is finished is kept in {options.out}; the same command goes on with it"
    try:
        yield
    except (ServerError, ToolError) as error:
        say("[bold red]failed:[/]", str(error))
        say("[yellow]incomplete:[/]", go_on)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    except KeyboardInterrupt as error:
        say("[yellow]interrupted:[/]", go_on)
        raise typer.Exit(EXIT_INTERRUPTED) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _write(report: RegressReport, options: Options) -> None:
    files = write_report(report, options.out)
    print_report(report, Console(emoji=False))
    if options.save_baseline is not None and report.regressions:
        say("[yellow]not saved:[/]", f"{options.save_baseline}: there is a regression")
    elif options.save_baseline is not None:
        write_json(report.measured, options.save_baseline)
        files.append(options.save_baseline)
    say("written:", ", ".join(map(str, files)))
