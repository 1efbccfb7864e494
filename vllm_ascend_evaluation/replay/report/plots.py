# SPDX-License-Identifier: Apache-2.0
"""Plots as inline SVG for the page, and one picture for a README."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from vllm_ascend_evaluation.replay.report.colours import variant_colours
from vllm_ascend_evaluation.replay.report.figures import (
    FAINT,
    INK,
    draw_samples,
    draw_unlimited,
    picture,
    svg,
)
from vllm_ascend_evaluation.replay.results import ReplayReport, RunResult, WorkloadReport

# Shades that no variant has.
_POOL = {"used": "#6a51a3", "cached": "#bcbddc", "scratch": "#efedf5"}
_THOUSANDS = StrMethodFormatter("{x:,.0f}")
# A bar so high, in percent, has room for its number inside.
_ROOM_INSIDE = 8


def hit_rate_over_time(workload: WorkloadReport, colours: Mapping[str, str]) -> str:
    """Return an SVG: hit rate of all requests so far, per variant, with the bounds.

    Args:
        workload: What ran.
        colours: Of each variant, as for the others.
    """

    def draw(axes: Axes) -> None:
        for run in workload.runs:
            draw_samples(axes, run.samples, color=colours[run.variant], label=run.variant)
        bound = workload.bounds.granule_128
        text = f"unlimited cache, granule 128: {bound:.1f} %"
        words = {"ha": "right", "va": "bottom"}
        draw_unlimited(axes, bound, text, at=1, offset=(0, 2), linestyle="--", **words)
        axes.set(xlabel="requests scheduled", ylabel="hit rate, % of prompt tokens", xlim=(0, None))
        _count_on(axes, "x")
        axes.set_ylim(0, max(bound * 1.15, 5))
        _legend(axes, columns=2)

    return svg(draw)


def hit_rate_by_length(workload: WorkloadReport, colours: Mapping[str, str]) -> str:
    """Return an SVG: hit rate by prompt length, one group of bars per length."""
    edges = sorted({(b.min_tokens, b.max_tokens) for run in workload.runs for b in run.buckets})

    def draw(axes: Axes) -> None:
        width = 0.8 / max(len(workload.runs), 1)
        for number, run in enumerate(workload.runs):
            rates = {
                (b.min_tokens, b.max_tokens): 100 * b.hit_tokens / b.prompt_tokens
                for b in run.buckets
            }
            places = [place - 0.4 + (number + 0.5) * width for place in range(len(edges))]
            heights = [rates.get(edge, 0.0) for edge in edges]
            colour = colours[run.variant]
            axes.bar(places, heights, width * 0.92, color=colour, label=run.variant)
        axes.set_xticks(range(len(edges)), [_range(*edge) for edge in edges])
        axes.set(xlabel="prompt length, tokens", ylabel="hit rate, % of prompt tokens")
        axes.set_ylim(0, max(5, axes.get_ylim()[1]))
        axes.grid(visible=False, axis="x")
        _legend(axes, columns=2)

    return svg(draw)


def hit_rate_by_rank(workload: WorkloadReport, colours: Mapping[str, str]) -> str:
    """Return an SVG: hit rate of every data-parallel rank, one group of bars per rank."""
    runs = [(run.variant, run.data_parallel) for run in workload.runs if run.data_parallel]

    def draw(axes: Axes) -> None:
        width = 0.8 / len(runs)
        for number, (variant, ranks) in enumerate(runs):
            places = [rank - 0.4 + (number + 0.5) * width for rank in range(ranks.num_ranks)]
            label = f"{variant}, by {ranks.routing}"
            axes.bar(places, ranks.hit_rates, width * 0.92, color=colours[variant], label=label)
        axes.set(xlabel="data-parallel rank", ylabel="hit rate, % of prompt tokens")
        axes.set_ylim(0, max(5, axes.get_ylim()[1]))
        axes.grid(visible=False, axis="x")
        _count_on(axes, "x")
        _legend(axes, columns=2)

    return svg(draw)


def pool_composition(run: RunResult) -> str:
    """Return an SVG: what the pool's blocks held, step by step."""

    def draw(axes: Axes) -> None:
        steps = [sample.step for sample in run.samples]
        layers = {
            "used": [sample.used_blocks for sample in run.samples],
            "cached": [sample.cached_blocks for sample in run.samples],
            "scratch": [sample.scratch_blocks for sample in run.samples],
        }
        axes.stackplot(
            steps, *layers.values(), colors=_POOL.values(), labels=layers.keys(), linewidth=0
        )
        axes.set(xlabel="scheduler steps", ylabel="blocks", xlim=(0, None))
        axes.set_ylim(0, run.num_blocks)
        _count_on(axes, "x")
        _count_on(axes, "y")
        axes.set_title(run.variant, fontsize=9, loc="left", pad=20)
        _legend(axes, columns=3)

    return svg(draw, size=(6.4, 2.4))


def summary_png(report: ReplayReport, path: Path) -> None:
    """Write the picture: hit rate per workload and variant, against the unlimited cache.

    Raises:
        OSError: The file cannot be written.
    """
    colours = variant_colours(report)
    names = list(colours)
    with picture(path, height=3.9) as figure:
        axes = figure.subplots()
        width = 0.82 / max(len(names), 1)
        for place, workload in enumerate(report.workloads):
            _draw_bound(axes, place, workload)
            for run in workload.runs:
                x = place - 0.41 + (names.index(run.variant) + 0.5) * width
                axes.bar(x, run.hit_rate, width * 0.9, color=colours[run.variant])
                _number(axes, x, run.hit_rate)
        for name in names:
            axes.bar(0, 0, color=colours[name], label=name)
        axes.set_xticks(range(len(report.workloads)), [w.workload for w in report.workloads])
        axes.set_ylabel("hit rate, % of prompt tokens")
        axes.set_ylim(0, 105)
        axes.grid(visible=False, axis="x")
        axes.tick_params(axis="x", length=0)
        if names:
            figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=9)


def _number(axes: Axes, x: float, rate: float) -> None:
    """Write a bar's height into it, or above it if it is too low for that."""
    is_inside = rate >= _ROOM_INSIDE
    axes.annotate(
        f"{rate:.1f}",
        (x, rate),
        xytext=(0, -3 if is_inside else 2),
        textcoords="offset points",
        ha="center",
        va="top" if is_inside else "bottom",
        fontsize=9,
        fontweight="bold" if is_inside else "normal",
        color="white" if is_inside else INK,
    )


def _draw_bound(axes: Axes, place: int, workload: WorkloadReport) -> None:
    bound = workload.bounds.granule_128
    # A bar that is too low to hold its number has it above, where these words would stand.
    is_crowded = any(bound - _ROOM_INSIDE < run.hit_rate < _ROOM_INSIDE for run in workload.runs)
    axes.hlines(bound, place - 0.43, place + 0.43, color=INK, linewidth=1, linestyle=":")
    axes.annotate(
        f"unlimited cache {bound:.1f}",
        (place + 0.43, bound),
        xytext=(0, 14 if is_crowded else 2),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8,
        color=FAINT,
    )


def _count_on(axes: Axes, name: Literal["x", "y"]) -> None:
    """Let an axis count: whole numbers, in thousands."""
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))
    axis.set_major_formatter(_THOUSANDS)


def _legend(axes: Axes, *, columns: int) -> None:
    """Put the legend above the plot, where it hides nothing."""
    axes.legend(
        frameon=False,
        fontsize=8,
        ncols=columns,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.2,
        borderpad=0,
        columnspacing=1.4,
    )


def _range(low: int, high: int) -> str:
    def short(tokens: int) -> str:
        return f"{tokens // 1024}K" if tokens >= 1024 else str(tokens)

    return f">= {short(low)}" if high >= 1 << 40 else f"{short(low)}-{short(high)}"
