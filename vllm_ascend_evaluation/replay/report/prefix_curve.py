# SPDX-License-Identifier: Apache-2.0
"""Hit rate over the number of prefixes, on a terminal and as a picture."""

from __future__ import annotations

from pathlib import Path

from matplotlib.ticker import FixedLocator, NullLocator
from rich.console import Console

from vllm_ascend_evaluation.replay.curves.lines import PrefixCurve
from vllm_ascend_evaluation.replay.report.colours import colours_of
from vllm_ascend_evaluation.replay.report.figures import draw_unlimited, picture
from vllm_ascend_evaluation.replay.report.lines import places, print_lines
from vllm_ascend_evaluation.replay.report.table import print_variants

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
    print_lines(console, "prefixes", curve.lines, str)
    print_variants(curve.replay, console)


def _blocks(curve: PrefixCurve) -> str:
    sizes = {(run.num_blocks, run.block_size) for w in curve.replay.workloads for run in w.runs}
    return ", ".join(f"{number:,} blocks of {size} tokens" for number, size in sorted(sizes))


def prefix_curve_png(curve: PrefixCurve, path: Path) -> None:
    """Write the picture.

    Raises:
        OSError: The file cannot be written.
    """
    lines = curve.lines
    with picture(path) as figure:
        axes = figure.subplots()
        colours = colours_of(line.name for line in lines)
        for number, line in enumerate(lines):
            points = sorted(line.rates.items())
            axes.plot(
                [x for x, _ in points],
                [rate for _, rate in points],
                label=line.name,
                color=colours[line.name],
                linewidth=2,
                # Lines lie upon each other where everything fits: the lower ones are larger.
                marker="o",
                markersize=5 + 1.5 * (len(lines) - 1 - number),
                clip_on=False,
            )
        text = f"unlimited cache: {curve.bound:.1f} %"
        draw_unlimited(axes, curve.bound, text, at=1, offset=(-4, 3), ha="right")
        axes.xaxis.set_major_locator(FixedLocator(places(lines)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(
            xlabel="shared prefixes, asked for in turn",
            ylabel="hit rate from the second round on, %",
        )
        axes.set_ylim(0, _HEADROOM)
        figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=9)
