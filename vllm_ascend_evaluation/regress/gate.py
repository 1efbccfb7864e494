# SPDX-License-Identifier: Apache-2.0
"""Runs the steps, judges them, writes the report, and ends with what it found."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import typer
from rich.console import Console

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.command_line.ends import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    EXIT_VIOLATION,
    bad_input_ends,
    say,
)
from vllm_ascend.command_line.interrupts import termination_interrupts
from vllm_ascend.server_access.access import ServerError, without_secrets
from vllm_ascend.server_access.server import Server
from vllm_ascend_evaluation.regress.ci import write_junit, write_markdown
from vllm_ascend_evaluation.regress.journal import Journal
from vllm_ascend_evaluation.regress.judge import judge
from vllm_ascend_evaluation.regress.notes import notes_on, notes_on_noise
from vllm_ascend_evaluation.regress.options import Options
from vllm_ascend_evaluation.regress.process import ToolError
from vllm_ascend_evaluation.regress.report import RegressReport, print_report, write_report
from vllm_ascend_evaluation.regress.results import Measured
from vllm_ascend_evaluation.regress.steps import Run, measure_accuracy, measure_performance
from vllm_ascend_evaluation.replay.report.json_file import write_json


def run_gate(options: Options) -> None:
    """Measure what is not measured yet, compare, and report.

    Raises:
        typer.Exit: There is a regression, something failed or was interrupted; carries the code.
    """
    with bad_input_ends(), _failures_end(""):
        options.check_access()
        options.files.check()
        baseline = options.read_baseline()
        journal = Journal(options.out, restart=options.earlier.restart)
        run = None if options.earlier.rejudge else _begin(journal, options)
        kept = _kept(journal.measured, options)
    with bad_input_ends(), _failures_end(f"; {_go_on(options)}"):
        if run is not None:
            _measure(run, options, kept)
        measured = _of_suite(journal.measured, options)
        verdicts = judge(measured, baseline, options.tolerances)
        report = RegressReport(
            command=shlex.join(["python", "-m", "vllm_ascend", *without_secrets(sys.argv[1:])]),
            measured=measured,
            baseline=str(options.baseline_file or ""),
            verdicts=verdicts,
            notes=[*kept, *notes_on(measured, baseline), *notes_on_noise(verdicts)],
        )
        _write(report, options)
    if report.regressions:
        raise typer.Exit(EXIT_VIOLATION)


def _check_journal(journal: Journal, options: Options) -> None:
    """Check that what is in ``--out`` can be gone on with.

    Raises:
        BadInputError: It cannot.
    """
    for step, settings in options.steps.items():
        journal.check(step, settings)
    if all(getattr(journal.measured, step) is not None for step in options.steps):
        raise BadInputError(
            f"--out {options.out} holds a finished run: --rejudge judges it without measuring, "
            "--restart measures anew, another folder keeps both"
        )


def _begin(journal: Journal, options: Options) -> Run:
    """Check the journal, ask the server what it is, and open the journal for it.

    Raises:
        ServerError: It cannot be reached, or has no counters of a prefix cache.
        BadInputError: It is another one, or will not do.
    """
    _check_journal(journal, options)
    server = Server(options.url, options.access)
    model = server.model(options.model)
    options.check_fits(model)
    tokenizer = options.find_tokenizer(model)
    server.counters()  # if they cannot be read, say so before the load and not behind it
    journal.open(server.target(model), same_server=options.earlier.same_server)
    return Run(server, journal, tokenizer, options.timeout_s)


def _measure(run: Run, options: Options, kept: Sequence[str]) -> None:
    for note in kept:
        say("[yellow]note:[/]", note)
    if options.performance is not None:
        measure_performance(run, options.performance)
    if options.accuracy is not None and options.gpqa is not None:
        measure_accuracy(run, options.accuracy, options.gpqa)


def _of_suite(measured: Measured, options: Options) -> Measured:
    """Return what was measured of the steps asked for."""
    return replace(
        measured,
        performance=measured.performance if options.performance else None,
        accuracy=measured.accuracy if options.accuracy else None,
    )


def _kept(measured: Measured, options: Options) -> list[str]:
    """Return a note per step that is not measured now."""
    return [
        f"{step} is kept from before (--restart measures anew)"
        for step in options.steps
        if getattr(measured, step) is not None
    ]


def _go_on(options: Options) -> str:
    other = " without --restart" if options.earlier.restart else ""
    return f"what is finished is kept in {options.out}; the same command{other} goes on with it"


@contextlib.contextmanager
def _failures_end(what_now: str) -> Iterator[None]:
    """End the command with one line if the server or a tool fails or the user interrupts.

    Args:
        what_now: Added to the line.

    Raises:
        typer.Exit: In place of ``ServerError``, ``ToolError`` and ``KeyboardInterrupt``.
    """
    try:
        with termination_interrupts():
            yield
    except (ServerError, ToolError) as error:
        say("[bold red]failed:[/]", f"{error}{what_now}")
        raise typer.Exit(EXIT_BAD_INPUT) from error
    except KeyboardInterrupt as error:
        say("[yellow]interrupted:[/]", f"by the user{what_now}")
        raise typer.Exit(EXIT_INTERRUPTED) from error


def _write(report: RegressReport, options: Options) -> None:
    files, wanted = write_report(report, options.out), options.files
    for path, write in ((wanted.junit, write_junit), (wanted.markdown, write_markdown)):
        if path is not None:
            write(report, path)
            files.append(path)
    print_report(report, Console(emoji=False))
    if wanted.save_baseline is not None and report.regressions:
        say("[yellow]not saved:[/]", f"{wanted.save_baseline}: there is a regression")
    elif wanted.save_baseline is not None:
        write_json(report.measured, wanted.save_baseline)
        files.append(wanted.save_baseline)
    say("written:", ", ".join(map(str, files)))
