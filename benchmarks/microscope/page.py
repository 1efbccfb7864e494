# SPDX-License-Identifier: Apache-2.0
"""Writes what was measured into a page of the documentation, and its picture beside it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.microscope.figures import Figures
from benchmarks.microscope.plot import draw
from benchmarks.microscope.tables import markdown, summary

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write_page(figures: Figures, page: Path) -> None:
    """Replace what stands between the two marks, and ``images/<page>.png``.

    Raises:
        ValueError: The page lacks a mark.
    """
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page}: there is no {BEGIN} ... {END} to write between")
    picture = Path("images") / f"{page.stem}.png"
    draw(figures, page.parent / picture)
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n{_measured(figures, picture)}\n{END}{after}", "utf-8")


def _measured(figures: Figures, picture: Path) -> str:
    machine = figures.machine
    rounds = len(next(iter(figures.samples.values())))
    parts = [
        f"Printed on {machine['cores']} cores ({machine['processor']}) with Python "
        f"{machine['Python']} and vLLM {machine['vLLM']}, load average {machine['load average']}; "
        + ("one round." if rounds == 1 else f"medians of {rounds} rounds."),
        f"![Time of each operation over prompt length and running requests]({picture})",
        "*Milliseconds of CPU time, both axes logarithmic.*",
        *map(markdown, summary(figures)),
    ]
    return "\n\n".join(parts)
