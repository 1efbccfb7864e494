# SPDX-License-Identifier: Apache-2.0
"""Hit rate over the number of prefixes, on a terminal and as a picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_ascend.replay.curves.lines import PrefixCurve
from vllm_ascend.replay.report.plots import FAINT, STYLE, colours, write_png
from vllm_ascend.replay.report.table import print_variants

# For the words above the highest line.
_HEADROOM = 108


def print_prefix_curve(curve: PrefixCurve, console: Console) -> None:
    """Print a row per number of prefixes, a column per variant."""
    console.print(f"KV cache of {curve.kv_tokens:,} tokens, {_blocks(curve)}", highlight=False)
    console.print(
        f"hit tokens in percent of prompt tokens from the second of {curve.num_rounds} rounds on; "
        f"unlimited cache: {curve.bound:.2f}",
        highlight=False,
    )
    lines = curve.lines
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("prefixes", justify="right", no_wrap=True)
    for line in lines:
        table.add_column(escape(line.name), justify="right", overflow="fold")
    for number in _numbers(curve):
        cells = (f"{line.rates[number]:.2f}" if number in line.rates else "-" for line in lines)
        table.add_row(str(number), *cells)
    console.print()
    console.print(table)
    print_variants(curve.replay, console)


def _numbers(curve: PrefixCurve) -> list[int]:
    return sorted({number for line in curve.lines for number in line.rates})


def _blocks(curve: PrefixCurve) -> str:
    sizes = {(run.num_blocks, run.block_size) for w in curve.replay.workloads for run in w.runs}
    return ", ".join(f"{number:,} blocks of {size} tokens" for number, size in sorted(sizes))


def prefix_curve_png(curve: PrefixCurve, path: Path) -> None:
    """Write the picture.

    Raises:
        OSError: The file cannot be written.
    """
    lines = curve.lines
    with matplotlib.rc_context({**STYLE, "font.size": 11}):
        figure = Figure(figsize=(8.4, 4.2), dpi=150, layout="constrained")
        axes = figure.subplots()
        for number, (line, colour) in enumerate(zip(lines, colours(len(lines)), strict=True)):
            points = sorted(line.rates.items())
            axes.plot(
                [x for x, _ in points],
                [rate for _, rate in points],
                label=line.name,
                color=colour,
                linewidth=2,
                # Lines lie upon each other where everything fits: the lower ones are larger.
                marker="o",
                markersize=5 + 1.5 * (len(lines) - 1 - number),
                clip_on=False,
            )
        axes.axhline(curve.bound, color=FAINT, linewidth=1, linestyle=":")
        axes.annotate(
            f"unlimited cache: {curve.bound:.1f} %",
            (1, curve.bound),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=FAINT,
        )
        axes.xaxis.set_major_locator(FixedLocator(_numbers(curve)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(
            xlabel="shared prefixes, asked for in turn",
            ylabel="hit rate from the second round on, %",
        )
        axes.set_ylim(0, _HEADROOM)
        figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=9)
        write_png(figure, path)
