# SPDX-License-Identifier: Apache-2.0
"""Tables of what was measured, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.microscope.cases import ALL_CASES, OPERATIONS, PROMPT_TOKENS, Case
from benchmarks.microscope.figures import Figures
from benchmarks.microscope.sides import SIDES, STOCK


@dataclass(frozen=True)
class Sheet:
    """A table before it is drawn.

    Attributes:
        head: The first column's heading, then a size each.
        rows: A side each.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sheets(figures: Figures) -> Iterator[Sheet]:
    """Yield a table per operation, then what was hit and what the keys take."""
    for operation in OPERATIONS:
        if _cases(figures, operation):
            yield _operation_sheet(figures, operation)
    yield from _facts(figures, "look_up_full", "hit_tokens", "Found of the whole prompt", "tokens")
    yield from _facts(figures, "look_up_middle", "hit_tokens", "Found of the first half", "tokens")
    yield from _facts(figures, "free", "key_bytes", "Keys of the prompt's blocks", "KiB", 1024)


def summary(figures: Figures) -> Iterator[Sheet]:
    """Yield the two tables that a page has room for: the largest prompt, and a step.

    What the first one leaves out, smaller prompts and sides that change nothing, is in
    :func:`sheets`.
    """
    prompts = [
        case
        for case in ALL_CASES
        if case.num_tokens == PROMPT_TOKENS[-1] and not case.num_running
        if all(figures.knows(side, case) for side in figures.samples)
    ]
    if prompts:
        rows = [
            (_title(case.operation), *(_cell(figures, side, case) for side in _sides(figures)))
            for case in prompts
        ]
        head = ("ms (ratio to stock)", *(SIDES[side].title for side in _sides(figures)))
        yield Sheet(f"A prompt of {prompts[0].num_tokens:,} tokens", head, tuple(rows))
    if _cases(figures, "schedule"):
        yield _operation_sheet(figures, "schedule")


def print_sheets(figures: Figures, console: Console) -> None:
    """Print every table."""
    for sheet in sheets(figures):
        table = Table(
            title=sheet.title,
            title_justify="left",
            title_style="bold",
            box=SIMPLE_HEAD,
            show_edge=False,
            padding=0,
        )
        for number, heading in enumerate(sheet.head):
            table.add_column(heading, justify="right" if number else "left", no_wrap=bool(number))
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table, "")


def markdown(sheet: Sheet) -> str:
    """Return a table as Markdown, its title in the corner."""
    lines = [
        f"| {' | '.join((f'{sheet.title}, {sheet.head[0]}', *sheet.head[1:]))} |",
        f"|---|{'---:|' * (len(sheet.head) - 1)}",
        *(f"| {' | '.join(row)} |" for row in sheet.rows),
    ]
    return "\n".join(lines)


def milliseconds(ms: float) -> str:
    """Return three significant digits: ``0.0083``, ``4.07``, ``1,494``."""
    if ms >= 100:
        return f"{ms:,.0f}"
    digits = 2
    while digits < 4 and ms < 10 ** (1 - digits):
        digits += 1
    return f"{ms:.{digits}f}"


def _sheet(title: str, unit: str, cases: list[Case], rows: list[list[str]]) -> Sheet:
    named = tuple((SIDES[side].title, *cells) for side, *cells in rows)
    return Sheet(title, (unit, *(case.size for case in cases)), named)


def _operation_sheet(figures: Figures, operation: str) -> Sheet:
    cases = _cases(figures, operation)
    rows = [[side, *(_cell(figures, side, case) for case in cases)] for side in _sides(figures)]
    return _sheet(_title(operation), "ms (ratio to stock)", cases, rows)


def _title(operation: str) -> str:
    _, title, detail = OPERATIONS[operation]
    return f"{title}, {detail}" if detail else title


def _facts(
    figures: Figures, operation: str, fact: str, title: str, unit: str, per_unit: int = 1
) -> Iterator[Sheet]:
    """Yield a table of what is the same in every round, if it was found out at all."""
    cases = _cases(figures, operation)
    rows = [
        [side, *(f"{figures.fact(side, case, fact) / per_unit:,.0f}" for case in cases)]
        for side in _sides(figures)
    ]
    if cases:
        yield _sheet(title, unit, cases, rows)


def _sides(figures: Figures) -> list[str]:
    return [key for key in SIDES if key in figures.samples]


def _cases(figures: Figures, operation: str) -> list[Case]:
    return [
        case
        for case in ALL_CASES
        if case.operation == operation and all(figures.knows(s, case) for s in figures.samples)
    ]


def _cell(figures: Figures, side: str, case: Case) -> str:
    ms = milliseconds(figures.ms(side, case))
    if side == STOCK or STOCK not in figures.samples:
        return ms
    return f"{ms} ({figures.ratio(side, STOCK, case):.2f})"
