# SPDX-License-Identifier: Apache-2.0
"""Lines of a curve as a table on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_ascend_evaluation.replay.curves.lines import Line


def places(lines: Sequence[Line]) -> list[int]:
    """Return where any of the lines has a point."""
    return sorted({place for line in lines for place in line.rates})


def print_lines(
    console: Console, heading: str, lines: Sequence[Line], name: Callable[[int], str]
) -> None:
    """Print a row per place, a column per line.

    Args:
        console: Where to print.
        heading: Of the places.
        lines: The lines.
        name: Of a place.
    """
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        table.add_column(escape(line.name), justify="right", overflow="fold")
    for place in places(lines):
        rates = (f"{line.rates[place]:.2f}" if place in line.rates else "-" for line in lines)
        table.add_row(name(place), *rates)
    console.print()
    console.print(table)
