# SPDX-License-Identifier: Apache-2.0
"""The report on a terminal, 80 columns wide; on a narrower one lists instead of tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_ascend_evaluation.replay.report.rows import (
    BLOCK,
    CHECKED,
    COSTS,
    DISK,
    HITS,
    LOST,
    MEMORY,
    MODELLED,
    NAME,
    PREFIX_BLOCKS_ALONE,
    RANKS,
    TIER,
    Column,
    bound_lines,
    header,
    policy_lines,
    that_tell,
    variant_lines,
)
from vllm_ascend_evaluation.replay.results import ReplayReport, RunResult, WorkloadReport

# Names give way to numbers, but stay readable.
_MIN_NAME_WIDTH = 10


def print_report(report: ReplayReport, console: Console) -> None:
    """Print per workload what an unlimited cache would hit, what was hit, and what it cost."""
    tables: list[tuple[Column[RunResult], ...]] = [(NAME, CHECKED, BLOCK, *HITS), (NAME, *COSTS)]
    runs = [run for workload in report.workloads for run in workload.runs]
    if any(run.data_parallel for run in runs):
        tables.append((NAME, *RANKS))
    if any(run.tier for run in runs):
        tables.append((NAME, *TIER))
    if any(run.disk for run in runs):
        tables.append((NAME, *DISK))
    if any(run.memory for run in runs):
        tables += [(NAME, *MEMORY), (NAME, *LOST)]
    if report.cost_model:
        tables.append((NAME, *MODELLED))
    print_variants(report, console)
    for workload in report.workloads:
        print_heading(report, workload, console)
        for columns in (that_tell(columns, workload.runs) for columns in tables):
            console.print()
            if _least_width(workload, columns) <= console.width:
                console.print(_table(workload, columns))
            else:
                _print_list(workload, columns, console)
    if report.cost_model:
        parameters = ", ".join(f"{name} {value:g}" for name, value in report.cost_model.items())
        console.print(f"[dim]times are modelled, not measured: {parameters}[/]", highlight=False)


def print_variants(report: ReplayReport, console: Console) -> None:
    """Print what the variants are, a line each."""
    lines = variant_lines(report)
    if not lines:
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", min_width=_MIN_NAME_WIDTH)
    table.add_column(style="dim")
    for name, description in lines:
        table.add_row(escape(name), escape(description))
    console.print()
    console.print(table)


def print_heading(report: ReplayReport, workload: WorkloadReport, console: Console) -> None:
    """Print what a workload is, and what an unlimited cache would hit."""
    console.print()
    title = f"[bold]{escape(workload.workload)}[/]  {escape(workload.description)}"
    console.print(title, highlight=False)
    console.print(f"[dim]{escape(header(report, workload))}[/]", highlight=False)
    bounds = ", ".join(f"{rate} % ({granule})" for granule, rate in bound_lines(workload.bounds))
    console.print(f"unlimited cache (granule in tokens): {bounds}", highlight=False)
    policies = ", ".join(f"{name} {rate} %" for name, rate in policy_lines(workload))
    if policies:
        console.print(f"{PREFIX_BLOCKS_ALONE}: {policies}", highlight=False)


def _table(workload: WorkloadReport, columns: Sequence[Column[RunResult]]) -> Table:
    # One blank between columns is what the box gives; more would not fit a terminal.
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for i, column in enumerate(columns):
        if i == 0:
            table.add_column(column.heading, overflow="fold", min_width=_MIN_NAME_WIDTH)
        else:
            # Only names wrap: a number that is torn apart reads as another one.
            table.add_column(column.heading, justify="right", no_wrap=True)
    for run in workload.runs:
        style = "bold red" if run.violations else ""
        table.add_row(*(escape(column.cell(run)) for column in columns), style=style)
    return table


def _least_width(workload: WorkloadReport, columns: Sequence[Column[RunResult]]) -> int:
    """Return how wide a table is at least: names may wrap, numbers may not."""
    texts = [[*c.heading.split("\n"), *map(c.cell, workload.runs)] for c in columns[1:]]
    return _MIN_NAME_WIDTH + sum(1 + max(map(len, column)) for column in texts)


def _print_list(
    workload: WorkloadReport, columns: Sequence[Column[RunResult]], console: Console
) -> None:
    """Print the columns of each run one below the other."""
    name, *others = columns
    for run in workload.runs:
        console.print(f"[bold]{escape(name.cell(run))}[/]", style="red" if run.violations else "")
        for column in others:
            console.print(f"  {escape(column.in_a_line)}: {column.cell(run)}")
