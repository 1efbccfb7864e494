# SPDX-License-Identifier: Apache-2.0
"""What all pictures share: their look, the files they become, and lines that several have."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from vllm_ascend_evaluation.replay.report.json_file import write_whole
from vllm_ascend_evaluation.replay.results import Sample

if TYPE_CHECKING:  # the client in there costs every command its start
    from vllm_ascend_evaluation.replay.http.results import HttpSample

INK = "#26323d"
FAINT = "#8a97a3"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8edf1",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "replay",
}


@contextmanager
def picture(path: Path, *, width: float = 8.4, height: float = 4.2) -> Iterator[Figure]:
    """Give an empty figure to draw in, and write it at once behind the block.

    Args:
        path: The file, a PNG.
        width: In inches of 150 pixels.
        height: The same.

    Raises:
        OSError: The file cannot be written.
    """
    with matplotlib.rc_context({**STYLE, "font.size": 11}):
        figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
        yield figure
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    write_whole(path, buffer.getvalue())


def scale_by_decades(axes: Axes) -> None:
    """Make both axes logarithmic, with numbers at 1, 2, 5 and their multiples by ten."""
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.set_minor_formatter(NullFormatter())


def draw_samples(axes: Axes, samples: Sequence[Sample] | Sequence[HttpSample], **look: Any) -> None:
    """Draw the hit rate of all requests so far over their number."""
    counted = [sample for sample in samples if sample.prompt_tokens]
    axes.plot(
        [sample.num_requests for sample in counted],
        [100 * sample.hit_tokens / sample.prompt_tokens for sample in counted],
        linewidth=2,
        marker="o" if len(counted) < 3 else None,
        **look,
    )


def draw_unlimited(
    axes: Axes,
    rate: float,
    text: str,
    *,
    at: float,
    offset: tuple[float, float],
    linestyle: str = ":",
    **look: Any,
) -> None:
    """Draw what an unlimited cache hits, a line over the whole width with words.

    Args:
        axes: Where.
        rate: In percent.
        text: The words.
        at: Where they stand, as a share of the width.
        offset: Of the words, in points.
        linestyle: Of the line.
        look: Of the words.
    """
    axes.axhline(rate, color=FAINT, linewidth=1, linestyle=linestyle)
    axes.annotate(
        text,
        (at, rate),
        xycoords=("axes fraction", "data"),
        xytext=offset,
        textcoords="offset points",
        fontsize=8,
        color=FAINT,
        **look,
    )


def svg(draw: Callable[[Axes], None], size: tuple[float, float] = (6.4, 3.1)) -> str:
    """Return what is drawn, as an SVG for a page.

    Args:
        draw: Draws.
        size: Width and height in inches.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
