# SPDX-License-Identifier: Apache-2.0
"""Verdicts on a terminal, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_ascend_evaluation.regress.hit_counts import in_words
from vllm_ascend_evaluation.regress.journal import REPORT_HTML, REPORT_JSON
from vllm_ascend_evaluation.regress.judge import NOT_KNOWN, PASS, REGRESSION, Figure, Verdict
from vllm_ascend_evaluation.regress.results import (
    ACCEPTED,
    ACCEPTED_AT,
    AIS_BENCH,
    DRAFTED,
    DRAFTS,
    OF_DRAFTS,
    VLLM,
    Measured,
    Performance,
)
from vllm_ascend_evaluation.replay.report.json_file import write_json
from vllm_ascend_evaluation.replay.report.page import write_page

_WITH_UNITS = ("change", "allowed", "noise")
COLUMNS = ("", "baseline", "now", *_WITH_UNITS, "verdict")


@dataclass(frozen=True)
class RegressReport:
    """The outcome of a run.

    Attributes:
        command: The command line.
        measured: What was measured.
        baseline: File that it was compared with; empty without one.
        verdicts: One per metric.
        notes: What a reader of the numbers must know.
    """

    command: str
    measured: Measured
    baseline: str
    verdicts: Sequence[Verdict]
    notes: Sequence[str]

    @property
    def regressions(self) -> list[Verdict]:
        """Metrics that are worse than allowed."""
        return [verdict for verdict in self.verdicts if verdict.outcome == REGRESSION]

    @property
    def summary(self) -> str:
        """The outcome in a few words."""
        if not self.baseline:
            return "measured; there is no baseline to compare with"
        num_judged = len(self.regressions) + sum(v.outcome == PASS for v in self.verdicts)
        if self.regressions:
            names = ", ".join(verdict.metric.title for verdict in self.regressions)
            found = f"{len(self.regressions)} of {num_judged} metrics regressed: {names}"
        else:
            found = f"no regression in {num_judged} metric{'s' * (num_judged != 1)}"
        unknown = [v.metric.title for v in self.verdicts if v.outcome == NOT_KNOWN]
        return "; could not be judged: ".join([found, *unknown])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; it can be a baseline, too."""
        return {
            **self.measured.to_dict(),
            "command": self.command,
            "baseline": self.baseline,
            "passed": not self.regressions if self.baseline else None,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "notes": list(self.notes),
        }


def cells(verdict: Verdict) -> tuple[str, ...]:
    """Return a row of the table."""
    return (
        f"{verdict.metric.title}, {verdict.metric.unit}",
        _median(verdict.baseline),
        _median(verdict.now),
        _change(verdict.change, verdict.change_unit),
        _change(verdict.allowed, verdict.change_unit),
        "-" if verdict.noise is None else f"{verdict.noise:,.2f} {verdict.change_unit}",
        verdict.outcome,
    )


def table_of(verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """Return the headings and a row per verdict, without columns in which nothing is told."""
    rows = [COLUMNS, *map(cells, verdicts)]
    columns = zip(*rows, strict=True)
    return [*zip(*(c for c in columns if any(cell != "-" for cell in c[1:])), strict=True)]


def _median(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.median:,.2f}"


def _change(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:+,.2f} {unit}"


_TOOLS = {AIS_BENCH: "AISBench", VLLM: "vllm bench serve"}
_CLIENTS = {AIS_BENCH: "AISBench", VLLM: "this command"}


def facts(measured: Measured) -> list[tuple[str, str]]:
    """Return what else was measured, as names and values."""
    target = measured.target
    vllm = f", vLLM {target.vllm_version}" if target.vllm_version else ""
    rows = [("server", f"{target.url}, model {target.model}{vllm}")]
    if measured.performance is not None:
        rows += _facts_of_load(measured.performance)
    if measured.accuracy is not None:
        step, how = measured.accuracy, measured.accuracy.settings
        rows += [
            ("questions", f"{step.correct:,} of {how.questions:,} right"),
            ("asked by", _CLIENTS[how.tool]),
            ("answers", f"at most {how.max_tokens:,} tokens, temperature {how.temperature:g}"),
            ("questions ended", step.finished),
        ]
    return rows


def _facts_of_load(step: Performance) -> list[tuple[str, str]]:
    settings = step.settings
    load = (
        f"{settings.requests:,} requests, {settings.concurrency} in flight, "
        f"{settings.input_tokens:,} tokens in ({settings.shared_percent} % shared), "
        f"{settings.output_tokens:,} out, by {_TOOLS[settings.tool]}"
    )
    times = f"{settings.loads_in_words}; medians are judged"
    seconds = step.total(lambda load: load.times.seconds)
    hits = "not known" if step.hit_tokens is None else f"{step.hit_tokens:,}"
    prompts = step.total(lambda load: load.cache.prompt_tokens)
    return [
        ("load", load),
        ("loads", times),
        ("loads ended", f"{step.finished}, {seconds:,.1f} s in all"),
        ("hit tokens", f"{hits} of {prompts:,} prompt tokens"),
        ("hits counted", in_words(step)),
        *_facts_of_drafts(step.counters),
        *(
            (name, f"{value:,.0f}")
            for name, value in step.counters.items()
            if name not in OF_DRAFTS and not name.startswith(ACCEPTED_AT)
        ),
    ]


def _facts_of_drafts(counters: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return how many drafts were accepted, in all and by position; nothing without drafts."""
    drafted, steps = counters.get(DRAFTED), counters.get(DRAFTS)
    if not drafted or not steps:
        return []
    accepted = counters.get(ACCEPTED, 0.0)
    by_position = {
        int(name.removeprefix(ACCEPTED_AT).rstrip('"}')): count
        for name, count in counters.items()
        if name.startswith(ACCEPTED_AT)
    }
    shares = ", ".join(f"{100 * count / steps:.1f}" for _, count in sorted(by_position.items()))
    told = f"{100 * accepted / drafted:.1f} % of {drafted:,.0f}"
    return [("drafts accepted", f"{told}; by position {shares} %" if shares else told)]


def print_report(report: RegressReport, console: Console) -> None:
    """Print verdicts first, then what else was measured."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    headings, *rows = table_of(report.verdicts)
    table.add_column(headings[0], overflow="fold", min_width=10)
    for heading in headings[1:]:
        # A unit may stand below its number, but no verdict is cut.
        table.add_column(heading, justify="right", no_wrap=heading not in _WITH_UNITS)
    for verdict, row in zip(report.verdicts, rows, strict=True):
        style = "bold red" if verdict.outcome == REGRESSION else ""
        table.add_row(*map(escape, row), style=style)
    console.print()
    console.print(table)
    console.print()
    for name, value in facts(report.measured):
        console.print(f"[dim]{escape(name)}:[/] {escape(value)}", highlight=False)
    for note in report.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)
    style = "bold red" if report.regressions else "bold"
    console.print(f"[{style}]{escape(report.summary)}[/]", highlight=False)


def write_report(report: RegressReport, folder: Path) -> list[Path]:
    """Write the report as JSON and as a page, and return the files.

    Raises:
        OSError: The folder cannot be written.
    """
    files = [folder / REPORT_JSON, folder / REPORT_HTML]
    write_json(report, files[0])
    headings, *rows = table_of(report.verdicts)
    write_page(
        "regress.html.j2",
        files[1],
        report=report,
        columns=headings,
        rows=list(zip(report.verdicts, rows, strict=True)),
        regression=REGRESSION,
        facts=facts(report.measured),
    )
    return files
