# SPDX-License-Identifier: Apache-2.0
"""A sweep's hit rates as tables: on a terminal, and as markdown to paste into a document."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_ascend_evaluation.replay.curves.grid import UNSET, Cell, Row, SweepReport
from vllm_ascend_evaluation.replay.report.json_file import write_whole
from vllm_ascend_evaluation.replay.report.rows import bound_lines, header
from vllm_ascend_evaluation.replay.report.table import print_heading
from vllm_ascend_evaluation.replay.results import RunResult, WorkloadReport

_REFUSED = "-"
_MISSING = "?"
_BELOW = "="
_WRONG = "WRONG"
_AXES = ("block", "MTP", "partial")
_CAPTION = "Hit rates in percent of prompt tokens by retention interval; best: the profile."


class _Shown(NamedTuple):
    """A cell as text, and whether it stands out: the highest of its row, or a violation."""

    text: str
    is_highest: bool = False
    is_wrong: bool = False


class _Tables:
    """Looks up what to show of one workload."""

    def __init__(self, report: SweepReport, workload: WorkloadReport) -> None:
        self._report = report
        self._runs = {run.variant: run for run in workload.runs}

    def rows(self) -> list[tuple[list[str], list[_Shown]]]:
        """Return per row its settings and its cells."""
        return [(_settings(row), self._cells(row)) for row in self._report.grid.rows]

    def footnotes(self) -> list[str]:
        """Return what the signs mean that stand in place of numbers."""
        grid, refusals = self._report.grid, self._report.refusals
        notes = [f"{_REFUSED}  refused: {reason}" for reason in dict.fromkeys(refusals.values())]
        texts = {shown.text for shown in chain.from_iterable(map(self._cells, grid.rows))}
        if _MISSING in texts:
            notes.append(f"{_MISSING}  did not run to its end")
        if _BELOW in texts:
            notes.append(f"{_BELOW}  the profile sets partial hits itself: see the row with them")
        if _WRONG in texts:
            notes.append(f"{_WRONG}  rows were read that other tokens wrote, or blocks were lost")
        return notes

    def _cells(self, row: Row) -> list[_Shown]:
        shown = [self._shown(Cell(row, column)) for column in self._report.grid.columns]
        highest = max((float(s.text) for s in shown if s.text[:1].isdigit()), default=0.0)
        # Compared as shown: what looks equal is equally good.
        return [s._replace(is_highest=highest > 0 and s.text == f"{highest:.2f}") for s in shown]

    def _shown(self, cell: Cell) -> _Shown:
        if not self._report.grid.has(cell):
            return _Shown(_BELOW)
        if cell.name in self._report.refusals:
            return _Shown(_REFUSED)
        return _of_run(self._runs.get(cell.name))


def _of_run(run: RunResult | None) -> _Shown:
    if run is not None and run.violations:
        return _Shown(_WRONG, is_wrong=True)
    if run is None or not run.complete:
        return _Shown(_MISSING)
    return _Shown(f"{run.hit_rate:.2f}")


def _settings(row: Row) -> list[str]:
    partial = "yes" if row.partial_hits else "no"
    return [str(row.block_size), str(row.num_speculative_tokens), partial]


def _heading(column: str) -> str:
    return f"{int(column):,}" if column.isdigit() else column


def print_sweep(report: SweepReport, console: Console) -> None:
    """Print a table per workload, with what an unlimited cache would hit above it."""
    for workload in report.replay.workloads:
        print_heading(report.replay, workload, console)
        tables = _Tables(report, workload)
        console.print()
        console.print(_terminal_table(report, tables))
        for note in tables.footnotes():
            console.print(f"[dim]{escape(note)}[/]", highlight=False)
    console.print(f"\n[dim]{_CAPTION}[/]", highlight=False)


def _terminal_table(report: SweepReport, tables: _Tables) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in (*_AXES, *map(_heading, report.grid.columns)):
        table.add_column(escape(heading), justify="right", no_wrap=True)
    last_size = None
    for settings, cells in tables.rows():
        if last_size not in (None, settings[0]):
            table.add_section()
        last_size = settings[0]
        table.add_row(*settings, *map(_with_style, cells))
    return table


def _with_style(shown: _Shown) -> str:
    if shown.is_wrong:
        return f"[bold red]{shown.text}[/]"
    return f"[bold]{shown.text}[/]" if shown.is_highest else shown.text


def write_sweep_markdown(report: SweepReport, path: Path) -> None:
    """Write a section per workload, with the highest rate of every row in bold.

    Raises:
        OSError: The file cannot be written.
    """
    sections = [_section(report, workload) for workload in report.replay.workloads]
    partial = [] if report.replay.complete else ["Not everything ran to its end.", ""]
    lines = [_CAPTION, "", *partial, *chain.from_iterable(sections)]
    write_whole(path, "\n".join(lines))


def _section(report: SweepReport, workload: WorkloadReport) -> list[str]:
    tables = _Tables(report, workload)
    bounds = ", ".join(f"{rate} ({granule})" for granule, rate in bound_lines(workload.bounds))
    axes = ("block size", "MTP", "partial hits")
    columns = [UNSET if column == UNSET else f"`{column}`" for column in report.grid.columns]
    return [
        f"### {workload.workload}: {workload.description}",
        "",
        f"{header(report.replay, workload)}; unlimited cache (granule in tokens): {bounds}",
        "",
        _markdown_row([*axes, *columns]),
        _markdown_row(["---:"] * (len(axes) + len(columns))),
        *(
            _markdown_row([*settings, *map(_in_markdown, cells)])
            for settings, cells in tables.rows()
        ),
        "",
        *chain.from_iterable((note, "") for note in map(_note, tables.footnotes())),
    ]


def _note(text: str) -> str:
    # A line that begins with "-" would be a list.
    sign, _, meaning = text.partition("  ")
    return f"`{sign}` {meaning}"


def _in_markdown(shown: _Shown) -> str:
    return f"**{shown.text}**" if shown.is_highest or shown.is_wrong else shown.text


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
