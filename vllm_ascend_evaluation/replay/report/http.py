# SPDX-License-Identifier: Apache-2.0
"""A replay against a server: on a terminal, as a page and as a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_ascend_evaluation.replay.http.results import HttpReport, HttpRun, HttpWorkload, Times
from vllm_ascend_evaluation.replay.report.colours import SERVER
from vllm_ascend_evaluation.replay.report.figures import FAINT, INK, draw_samples, picture, svg
from vllm_ascend_evaluation.replay.report.page import write_page
from vllm_ascend_evaluation.replay.report.rows import HIT_RATES, NAME, Column, bound_lines, name_of
from vllm_ascend_evaluation.replay.results import HitRates

# A bar so high, in percent, has room for its number inside.
_ROOM_INSIDE = 12


def _ttft(times: Times | None) -> str:
    return f"{times.avg:,.0f} / {times.p50:,.0f} / {times.p90:,.0f}" if times else "-"


def _tpot(times: Times | None) -> str:
    return f"{times.avg:,.1f} / {times.p90:,.1f}" if times else "-"


def _if_told(column: Column[HitRates]) -> Column[HttpRun]:
    """Return a column of hits that stays empty where the server tells none."""
    return Column(column.heading, lambda run: column.cell(run) if run.tells_hits else "-")


HITS: tuple[Column[HttpRun], ...] = (
    *map(_if_told, HIT_RATES),
    Column("prompt tokens", lambda run: f"{run.prompt_tokens:,}"),
    Column("requests", lambda run: f"{run.num_requests:,}"),
)
TIMES: tuple[Column[HttpRun], ...] = (
    Column("TTFT, ms\navg / p50 / p90", lambda run: _ttft(run.ttft_ms)),
    Column("TPOT, ms\navg / p90", lambda run: _tpot(run.tpot_ms)),
)
RATES: tuple[Column[HttpRun], ...] = (
    Column("requests\nper s", lambda run: f"{run.per_second(run.num_requests):,.2f}"),
    Column("prompt\ntokens/s", lambda run: f"{run.per_second(run.prompt_tokens):,.0f}"),
    Column("output\ntokens/s", lambda run: f"{run.per_second(run.output_tokens):,.0f}"),
)
_TABLES: tuple[tuple[Column[HttpRun], ...], ...] = ((NAME, *HITS), (NAME, *TIMES, *RATES))


def header(report: HttpReport, workload: HttpWorkload, run: HttpRun) -> str:
    """Return how a workload was sent, in one line."""
    parts = [run.url, run.arrivals, f"ids below {run.vocab_size:,}", f"seed {report.seed}"]
    if run.scale != 1:
        parts.append(f"1/{run.scale} of the prompts' tokens")
    if workload.num_dropped:
        parts.append(f"{workload.num_dropped:,} longer requests left out")
    return ", ".join([*parts, f"digest of the requests {workload.digest or '-'}"])


def print_http_report(report: HttpReport, console: Console) -> None:
    """Print per workload what an unlimited cache would hit, what was hit, and how fast it was."""
    for workload in report.workloads:
        console.print()
        title = f"[bold]{escape(workload.workload)}[/]  {escape(workload.description)}"
        console.print(title, highlight=False)
        for run in workload.runs:
            line = escape(header(report, workload, run))
            console.print(f"[dim]{line}[/]", highlight=False)
        bounds = ", ".join(
            f"{rate} % ({granule})" for granule, rate in bound_lines(workload.bounds)
        )
        console.print(f"unlimited cache (granule in tokens): {bounds}", highlight=False)
        for columns in _TABLES:
            console.print()
            console.print(_table(workload, columns))
        for note in workload.notes:
            console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)


def _table(workload: HttpWorkload, columns: tuple[Column[HttpRun], ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    table.add_column(columns[0].heading, overflow="fold", min_width=10)
    for column in columns[1:]:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for run in workload.runs:
        table.add_row(*(escape(column.cell(run)) for column in columns))
    return table


def write_http_html(report: HttpReport, path: Path) -> None:
    """Write the page; it refers to nothing outside itself.

    Raises:
        OSError: The file cannot be written.
    """
    sections = [
        {
            "workload": workload,
            "headers": [header(report, workload, run) for run in workload.runs],
            "bounds": bound_lines(workload.bounds),
            "over_time": Markup(_svg(workload, _draw_over_time)),
            "by_length": Markup(_svg(workload, _draw_by_length)),
        }
        for workload in report.workloads
    ]
    write_page(
        "http.html.j2",
        path,
        report=report,
        tables=_TABLES,
        sections=sections,
    )


def _svg(workload: HttpWorkload, draw: Callable[[Axes, HttpWorkload], None]) -> str:
    def draw_rates(axes: Axes) -> None:
        draw(axes, workload)
        axes.set_ylabel("hit rate, % of prompt tokens")
        axes.set_ylim(0, max(workload.bounds.granule_1 * 1.15, axes.get_ylim()[1], 5))

    return svg(draw_rates)


def _draw_over_time(axes: Axes, workload: HttpWorkload) -> None:
    for run in _that_tell_hits(workload):
        draw_samples(axes, run.samples, color=SERVER)
    axes.axhline(workload.bounds.granule_1, color=FAINT, linestyle="--", linewidth=1)
    axes.set(xlabel="requests answered", xlim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_by_length(axes: Axes, workload: HttpWorkload) -> None:
    for run in _that_tell_hits(workload):
        labels = [
            f">= {bucket.min_tokens:,}"
            if bucket.max_tokens >= 1 << 40
            else f"{bucket.min_tokens:,}-{bucket.max_tokens:,}"
            for bucket in run.buckets
        ]
        rates = [100 * bucket.hit_tokens / bucket.prompt_tokens for bucket in run.buckets]
        axes.bar(labels, rates, color=SERVER)
    axes.set_xlabel("prompt length, tokens")
    axes.grid(visible=False, axis="x")


def _that_tell_hits(workload: HttpWorkload) -> list[HttpRun]:
    """Return the runs whose hits can be drawn."""
    return [run for run in workload.runs if run.tells_hits]


def http_png(report: HttpReport, path: Path) -> None:
    """Write the picture: hit rate per workload, against the unlimited cache.

    Raises:
        OSError: The file cannot be written.
    """
    with picture(path, height=3.9) as figure:
        axes = figure.subplots()
        for place, workload in enumerate(report.workloads):
            for run in _that_tell_hits(workload):
                axes.bar(place, run.hit_rate, 0.6, color=SERVER)
                is_inside = run.hit_rate >= _ROOM_INSIDE
                look = {"va": "top" if is_inside else "bottom", "weight": "bold"}
                colour = "white" if is_inside else INK
                _number(axes, place, run.hit_rate, f"{run.hit_rate:.1f}", color=colour, **look)
            bound = workload.bounds.granule_1
            axes.hlines(bound, place - 0.43, place + 0.43, color=INK, linewidth=1, linestyle=":")
            text = f"unlimited cache {bound:.1f}"
            _number(axes, place + 0.43, bound, text, color=FAINT, va="bottom", ha="right")
        names = [f"{workload.workload}\n{_model(workload)}" for workload in report.workloads]
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.6, max(len(names), 1) - 0.4)
        axes.set_ylabel("hit rate, % of prompt tokens")
        axes.set_ylim(0, 105)
        axes.grid(visible=False, axis="x")


def _model(workload: HttpWorkload) -> str:
    return ", ".join(name_of(run) for run in workload.runs)


def _number(axes: Axes, x: float, rate: float, text: str, *, va: str, **look) -> None:
    options = {"ha": "center", "fontsize": 9, **look}
    place = (0, -3 if va == "top" else 2)
    axes.annotate(text, (x, rate), xytext=place, textcoords="offset points", va=va, **options)
