# SPDX-License-Identifier: Apache-2.0
"""The report on a terminal, 80 columns wide."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_ascend.replay.report.rows import (
    BLOCK,
    COSTS,
    HITS,
    MODELLED,
    NAME,
    Column,
    bound_lines,
)
from vllm_ascend.replay.results import ReplayReport, WorkloadReport

_MIN_NAME_WIDTH = 20


def print_report(report: ReplayReport, console: Console) -> None:
    """Print per workload what an unlimited cache would hit, what was hit, and what it cost."""
    tables = [(NAME, BLOCK, *HITS), (NAME, *COSTS)]
    if report.cost_model:
        tables.append((NAME, MODELLED))
    for workload in report.workloads:
        console.print()
        title = f"[bold]{escape(workload.workload)}[/]  {escape(workload.description)}"
        console.print(title, highlight=False)
        console.print(f"[dim]{escape(_header(report, workload))}[/]", highlight=False)
        bounds = ", ".join(
            f"{rate} % ({granule})" for granule, rate in bound_lines(workload.bounds)
        )
        console.print(f"unlimited cache (granule in tokens): {bounds}", highlight=False)
        for columns in tables:
            console.print()
            console.print(_table(workload, columns))
    if report.cost_model:
        parameters = ", ".join(f"{name} {value:g}" for name, value in report.cost_model.items())
        console.print(f"[dim]TTFT is modelled, not measured: {parameters}[/]", highlight=False)


def _header(report: ReplayReport, workload: WorkloadReport) -> str:
    layouts = sorted({run.layout for run in workload.runs})
    memory = sorted({run.kv_memory_bytes / (1 << 30) for run in workload.runs})
    return (
        f"layout {', '.join(layouts)}, KV {', '.join(f'{gib:g}' for gib in memory)} GiB, "
        f"vLLM {report.vllm_version}, seed {report.seed}, requests {workload.digest}"
    )


def _table(workload: WorkloadReport, columns: Sequence[Column]) -> Table:
    # One blank between columns is what the box gives; more would not fit a terminal.
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for i, column in enumerate(columns):
        if i == 0:
            table.add_column(column.heading, overflow="fold", min_width=_MIN_NAME_WIDTH)
        else:
            table.add_column(column.heading, justify="right", overflow="fold")
    for run in workload.runs:
        style = "bold red" if run.violations else ""
        table.add_row(*(escape(column.cell(run)) for column in columns), style=style)
    return table
