# SPDX-License-Identifier: Apache-2.0
"""The report on a terminal, also on a narrow one: numbers first, then targets, then details."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from vllm_ascend.doctor.render import print_without_padding
from vllm_ascend_evaluation.port_report import words
from vllm_ascend_evaluation.port_report.census import ABSENT, HELD, NATIVE, PortReport, Row, Section
from vllm_ascend_evaluation.port_report.definitions import BODY, SAME

_INDENT = _GAP = 2
# A column of names below this width would fold most of them.
_MIN_NAME_WIDTH = 32
_STYLES = {SAME: "green", NATIVE: "green", ABSENT: "green", HELD: "green", BODY: "yellow"}


def print_report(report: PortReport, console: Console) -> None:
    """Print the whole report."""
    print_without_padding(console, lambda: _print_sections(report, console))


def _print_sections(report: PortReport, console: Console) -> None:
    for section in report.sections:
        _print(console, words.title(section), _summary(section))
    for section in report.sections:
        name = words.TITLES[section.package]
        _print(console, f"{name}, target by target", *_grid(section.rows, section, console))
        if section.holders:
            title = f"{name}, aliases and keepers that are gone"
            _print(console, title, *_grid(section.holders, section, console))
        found = list(_details(section))
        if found:
            _print(console, f"{name}, what is different", *found)


def _print(console: Console, title: str, *parts: RenderableType) -> None:
    console.print(Text(title, style="bold"))
    for part in parts:
        console.print(Padding(part, (0, 0, 0, _INDENT), expand=False))
    console.print()


def _summary(section: Section) -> Table:
    columns = (Column(tree.label, justify="right", overflow="fold") for tree in section.trees)
    table = Table("", *columns, box=None, pad_edge=False, header_style="dim")
    for name, numbers in words.counts(section):
        table.add_row(Text(name, style=_STYLES.get(name, "")), *map(str, numbers))
    return table


def _grid(rows: Sequence[Row], section: Section, console: Console) -> Iterator[RenderableType]:
    """Yield a line per target with a column per tree, or, where that is too wide, lines below."""
    labels = [tree.label for tree in section.trees]
    widest = max((len(cell.status) for row in rows for cell in row.cells), default=0)
    widths = [max(len(label), widest) for label in labels]
    left = console.width - _INDENT - sum(width + _GAP for width in widths)
    is_wide = left >= _MIN_NAME_WIDTH
    name_width = min(left, max((len(_name(row)) for row in rows), default=0) + _INDENT)
    if is_wide:
        yield _aligned("", [Text(label, style="dim") for label in labels], name_width, widths)
    for module, group in groupby(rows, key=_module):
        yield Text(module, style="dim", overflow="fold")
        for row in group:
            statuses = [cell.status for cell in row.cells]
            if is_wide:
                cells = [Text(status, style=_style(status)) for status in statuses]
                yield _aligned(_name(row), cells, name_width, widths)
                continue
            yield _indented(Text(_name(row), overflow="fold"), 1)
            for trees, status in words.by_tree(statuses, section):
                line = Text.assemble((f"{trees}: ", "dim"), (status, _style(status)))
                yield _indented(line, 2)


def _aligned(name: str, cells: Sequence[Text], name_width: int, widths: Sequence[int]) -> Table:
    columns = (Column(width=width) for width in (name_width, *widths))
    table = Table(*columns, box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=False)
    table.add_row(_indented(Text(name, overflow="fold"), 1), *cells)
    return table


def _indented(text: Text, depth: int) -> Padding:
    return Padding(text, (0, 0, 0, depth * _INDENT))


def _details(section: Section) -> Iterator[RenderableType]:
    told = [(row, found) for row in section.rows if (found := list(words.details(row, section)))]
    for module, group in groupby(told, key=lambda pair: _module(pair[0])):
        yield Text(module, style="dim", overflow="fold")
        for row, found in group:
            yield _indented(Text(_name(row), overflow="fold"), 1)
            for trees, text in found:
                yield _indented(Text.assemble((f"{trees}: ", "dim"), text, overflow="fold"), 2)


def _style(status: str) -> str:
    return _STYLES.get(status, "red")


def _module(row: Row) -> str:
    return row.target.partition(":")[0]


def _name(row: Row) -> str:
    return row.target.partition(":")[2]
