# SPDX-License-Identifier: Apache-2.0
"""The memory curve on a terminal and as a picture."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator
from rich.console import Console
from rich.markup import escape

from vllm_ascend_evaluation.replay.curves.lines import BOUND_BLOCK_TOKENS, Line, MemoryCurve
from vllm_ascend_evaluation.replay.report.colours import colours_of
from vllm_ascend_evaluation.replay.report.figures import INK, draw_unlimited, picture
from vllm_ascend_evaluation.replay.report.lines import places, print_lines
from vllm_ascend_evaluation.replay.report.table import print_heading, print_variants

_GIB = 1 << 30
_DASHES = ("--", ":", "-.")
# For the words above the highest line.
_HEADROOM = 1.06


def print_curve(curve: MemoryCurve, console: Console) -> None:
    """Print a row per memory, a column per line."""
    print_heading(curve.replay, curve.workload, console)
    lines = (*curve.lines, *curve.bounds)
    print_lines(console, "GiB", lines, lambda memory: f"{memory / _GIB:g}")
    if curve.bytes_per_block is not None:
        _explain_bounds(curve.bytes_per_block, console)
    print_variants(curve.replay, console)
    # Often all variants are refused alike.
    names: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for refusal in curve.refusals:
        names[refusal.kv_memory_bytes, refusal.reason].append(refusal.variant)
    for (memory, reason), variants in sorted(names.items()):
        text = f"-  {memory / _GIB:g} GiB refused for {' / '.join(variants)}: {reason}"
        console.print(f"[dim]{escape(text)}[/]", highlight=False)


def _explain_bounds(bytes_per_block: int, console: Console) -> None:
    console.print(
        f"[dim]LRU, Belady and what is between: prefix blocks of {BOUND_BLOCK_TOKENS} tokens in "
        f"order of arrival, without a scheduler; a block takes {bytes_per_block:,} bytes[/]",
        highlight=False,
    )


def curve_png(curve: MemoryCurve, path: Path) -> None:
    """Write the picture: hit rate over memory, the bounds dashed.

    Raises:
        OSError: The file cannot be written.
    """
    lines = curve.lines
    with picture(path) as figure:
        axes = figure.subplots()
        colours = colours_of(line.name for line in lines)
        for line in lines:
            # Not clipped: a point at 0 % would be half a point.
            _plot(
                axes,
                line,
                color=colours[line.name],
                linewidth=2,
                marker="o",
                markersize=5,
                clip_on=False,
            )
        for line, dashes in zip(curve.bounds, _DASHES, strict=False):
            _plot(axes, line, color=INK, linewidth=1, linestyle=dashes)
        unlimited = curve.workload.bounds.granule_128
        text = f"unlimited cache, granule 128: {unlimited:.1f} %"
        draw_unlimited(axes, unlimited, text, at=0, offset=(4, 3))
        memories = places((*lines, *curve.bounds))
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator([memory / _GIB for memory in memories]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda gib, _: f"{gib:g}")
        axes.set(xlabel="KV cache of a rank, GiB", ylabel="hit rate, % of prompt tokens")
        axes.set_ylim(0, axes.get_ylim()[1] * _HEADROOM)
        figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=9)


def _plot(axes: Axes, line: Line, **look) -> None:
    points = sorted(line.rates.items())
    axes.plot(
        [memory / _GIB for memory, _ in points],
        [rate for _, rate in points],
        label=line.name,
        **look,
    )
