# SPDX-License-Identifier: Apache-2.0
"""One picture of all operations: time over the prompt's length, and over running requests."""

from __future__ import annotations

import io
from math import ceil
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from PIL import Image

from benchmarks.microscope.cases import ALL_CASES, OPERATIONS, STEPS, Case, size
from benchmarks.microscope.figures import Figures
from benchmarks.microscope.sides import SIDES
from vllm_ascend_evaluation.replay.report.figures import FAINT, STYLE

# Okabe and Ito's palette; a side and what it is compared with differ in colour, block sizes in
# the line.
_LINES = {
    "stock": ("#26323d", "-", "o"),
    "unset": ("#56B4E9", "--", "x"),
    "best-gpu": ("#CC79A7", "-", "D"),
    "upstream-128": ("#D55E00", "-", "s"),
    "best-128": ("#009E73", "-", "s"),
    "upstream-32": ("#D55E00", ":", "^"),
    "best-32": ("#009E73", ":", "^"),
}
_COLUMNS = 3


def draw(figures: Figures, path: Path) -> None:
    """Write a PNG, a panel per operation, both axes logarithmic."""
    operations = [name for name in OPERATIONS if _cases(figures, name)]
    rows = ceil(len(operations) / _COLUMNS)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 2.9 * rows + 0.6), layout="constrained")
        panels = figure.subplots(rows, _COLUMNS, squeeze=False).flat
        for axes, operation in zip(panels, operations, strict=False):
            _draw_panel(axes, figures, operation)
        for axes in list(panels)[len(operations) :]:
            axes.set_axis_off()
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Few colours, all flat: a palette makes the file a quarter as large.
        with io.BytesIO() as picture:
            figure.savefig(picture, dpi=100)
            Image.open(picture).quantize(64).save(path, optimize=True)


def _draw_panel(axes: Axes, figures: Figures, operation: str) -> None:
    cases = _cases(figures, operation)
    for side, (colour, line, marker) in _LINES.items():
        if side in figures.samples:
            axes.plot(
                [_place(case) for case in cases],
                [figures.ms(side, case) for case in cases],
                color=colour,
                linestyle=line,
                marker=marker,
                markersize=4,
                linewidth=1.5,
                label=SIDES[side].title,
            )
    is_step = OPERATIONS[operation].file == STEPS
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(
        [_place(case) for case in cases],
        [str(case.num_running) if is_step else size(case.num_tokens) for case in cases],
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:,g}"))
    axes.set_xlabel("running requests of 8K tokens" if is_step else "tokens", color=FAINT)
    axes.set_ylabel("ms", color=FAINT)
    axes.set_title(OPERATIONS[operation].title, loc="left", fontsize=10)


def _place(case: Case) -> int:
    return case.num_running or case.num_tokens


def _cases(figures: Figures, operation: str) -> list[Case]:
    """Return what a panel shows: of steps, only those with prompts of one length."""
    return [
        case
        for case in ALL_CASES
        if case.operation == operation
        and (not case.num_running or case.num_tokens == 8192)
        and all(figures.knows(side, case) for side in figures.samples)
    ]
