# SPDX-License-Identifier: Apache-2.0
"""Goodput on a terminal, and time to first token over the rate of requests as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_ascend_evaluation.replay.curves.loads import GoodputReport, Load
from vllm_ascend_evaluation.replay.curves.speeds import SLOWEST
from vllm_ascend_evaluation.replay.report.colours import colours_of
from vllm_ascend_evaluation.replay.report.figures import FAINT, picture, scale_by_decades
from vllm_ascend_evaluation.replay.report.table import print_heading, print_variants
from vllm_ascend_evaluation.replay.results import Percentiles

_LOADS = ("requests\nper s", "times the\ntimestamps", "times the\nfirst", "hits\n% tokens")
_TIMES = ("TTFT, s\np50 / p90 / p99", "TPOT, ms\np50 / p90 / p99")


def print_goodput(report: GoodputReport, console: Console) -> None:
    """Print a row per variant: the highest load that it serves as promised."""
    print_variants(report.replay, console)
    print_heading(report.replay, report.replay.workloads[0], console)
    console.print(f"\nhighest load with {report.slo}", highlight=False)
    best = {name: report.best(name) for name in report.loads}
    first = next((load for load in best.values() if load), None)
    _print_table(console, _LOADS, {name: _load(load, first) for name, load in best.items()})
    _print_table(console, _TIMES, {name: _times_of(load) for name, load in best.items()})
    for name, loads in report.loads.items():
        if loads and (best[name] is None or best[name] is loads[-1]):
            console.print(f"[dim]{escape(_at_the_end(name, loads))}[/]", highlight=False)
    parameters = ", ".join(f"{name} {value:g}" for name, value in report.replay.cost_model.items())
    console.print(f"[dim]times are modelled, not measured: {parameters}[/]", highlight=False)


def _print_table(
    console: Console, headings: Sequence[str], rows: Mapping[str, list[str] | None]
) -> None:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", overflow="fold", min_width=10)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in rows.items():
        table.add_row(escape(name), *(row or ["-"] * len(headings)))
    console.print()
    console.print(table)


def _load(load: Load | None, first: Load | None) -> list[str] | None:
    if load is None or first is None:
        return None
    numbers = (load.rate, load.speed, load.rate / first.rate)
    return [*(f"{number:.3g}" for number in numbers), f"{load.run.hit_rate:.2f}"]


def _times_of(load: Load | None) -> list[str] | None:
    if load is None:
        return None
    return [_three(load.run.modelled_ttft_ms, 1000.0, 2), _three(load.run.modelled_tpot_ms, 1.0, 0)]


def _three(times: Percentiles | None, unit_ms: float, digits: int) -> str:
    assert times is not None, "runs with a cost model have times"
    each = (times.p50, times.p90, times.p99)
    return " / ".join(f"{value / unit_ms:.{digits}f}" for value in each)


def _at_the_end(name: str, loads: Sequence[Load]) -> str:
    slowest = loads[0]
    if slowest.speed > SLOWEST:
        return f"{name}: so at every load that was tried"
    return (
        f"{name}: at no load, for of {slowest.rate:.3g} requests per s "
        f"{slowest.run.kept_percent:.2f} % are served so"
    )


def goodput_png(report: GoodputReport, path: Path) -> None:
    """Write the picture, a line per variant; the time per token where only that is promised.

    Raises:
        OSError: The file cannot be written.
    """
    is_ttft = math.isfinite(report.slo.ttft_ms)
    percentile = "p90" if report.slo.percent <= 90 else "p99"
    with picture(path) as figure:
        axes = figure.subplots()
        # One by one is so slow that all others would be drawn in a corner.
        drawn = {
            name: [load for load in loads if load.speed > SLOWEST]
            for name, loads in report.loads.items()
        }
        for name, colour in colours_of(drawn).items():
            loads = drawn[name]
            times = [
                load.run.modelled_ttft_ms if is_ttft else load.run.modelled_tpot_ms
                for load in loads
            ]
            axes.plot(
                [load.rate for load in loads],
                [getattr(time, percentile) / 1000.0 for time in times],
                *("o-",),
                color=colour,
                label=name,
                linewidth=2,
                markersize=5,
            )
        limit = (report.slo.ttft_ms if is_ttft else report.slo.tpot_ms) / 1000.0
        axes.axhline(limit, color=FAINT, linewidth=1, linestyle=":")
        axes.annotate(
            "promised",
            (1, limit),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=FAINT,
        )
        if any(drawn.values()):  # nothing was measured if it was interrupted early
            scale_by_decades(axes)
        what = "time to first token" if is_ttft else "time per token"
        axes.set(xlabel="requests per s", ylabel=f"{what}, {percentile}, s")
        figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=9)
