# SPDX-License-Identifier: Apache-2.0
"""The report as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vllm_ascend_evaluation.port_report import words
from vllm_ascend_evaluation.port_report.census import PortReport, Row, Section


def render_page(report: PortReport) -> str:
    """Return the report as Markdown; the same report gives the same text."""
    lines = ["# Patch targets on other releases", ""]
    for section in report.sections:
        lines += [*_summary(section), ""]
    for section in report.sections:
        name = words.TITLES[section.package]
        lines += [f"## {name}: targets", "", *_rows(section.rows, section), ""]
        if section.holders:
            lines += [f"## {name}: aliases and keepers that are gone", ""]
            lines += [*_rows(section.holders, section), ""]
        details = list(_details(section))
        if details:
            lines += [f"## {name}: what is different", "", *details, ""]
    return "\n".join([*lines, "## Words", "", *_meanings(report)]) + "\n"


def _summary(section: Section) -> Iterator[str]:
    yield f"## {words.title(section)}"
    yield ""
    yield from _table(
        ["", *(tree.label for tree in section.trees)],
        ([name, *map(str, numbers)] for name, numbers in words.counts(section)),
    )


def _rows(rows: Iterable[Row], section: Section) -> Iterator[str]:
    return _table(
        ["target", "feature", "kind", *(tree.label for tree in section.trees)],
        (
            [f"`{row.target}`", row.feature, row.kind, *(cell.status for cell in row.cells)]
            for row in rows
        ),
    )


def _details(section: Section) -> Iterator[str]:
    for row in section.rows:
        for trees, text in words.details(row, section):
            yield f"- `{row.target}`, {trees}: `{text}`"


def _meanings(report: PortReport) -> Iterator[str]:
    found = {
        cell.status
        for section in report.sections
        for row in (*section.rows, *section.holders)
        for cell in row.cells
    }
    for status, meaning in words.MEANINGS.items():
        if status in found:
            yield f"- *{status}*: {meaning}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(map(_escaped, row))} |"


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")
