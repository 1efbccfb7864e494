# SPDX-License-Identifier: Apache-2.0
"""What of a report is said in the same words on a terminal and on a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from vllm_ascend_evaluation.port_report.census import (
    ABSENT,
    HELD,
    MISSING,
    NATIVE,
    OTHER_DIGEST,
    Cell,
    Row,
    Section,
)
from vllm_ascend_evaluation.port_report.definitions import BODY, SAME, SIGNATURE
from vllm_ascend_evaluation.port_report.modules import GONE, IMPORTED, MODULE_GONE, UNREADABLE

TITLES = {"vllm": "vLLM", "vllm_ascend": "vllm-ascend"}
MEANINGS = {
    SAME: "the same body",
    BODY: "another body, the same signature",
    SIGNATURE: "another signature",
    OTHER_DIGEST: "another source than the patch knows; docstrings and comments count, too",
    NATIVE: "the tree has by itself what the patch adds",
    ABSENT: "the tree does not have what the patch adds",
    IMPORTED: "the module has it from another one",
    GONE: "the module has no such name",
    MODULE_GONE: "there is no such module",
    UNREADABLE: "the module cannot be parsed by this Python",
    HELD: "the module has the name",
}
_GONE_OR_MOVED = "gone or moved"
_SUPERSEDED = "superseded"
_UNDECIDED = "undecided"
_HOLDERS_GONE = "aliases, keepers gone"


def title(section: Section) -> str:
    """Return what is compared with what."""
    name = TITLES[section.package]
    if section.base is None:
        return f"{name}, by the digests of the patches only (more with --base-vllm-ascend)"
    return f"{name}, compared with {section.base.label}"


def counts(section: Section) -> Iterator[tuple[str, list[int]]]:
    """Yield a summary's rows: what is counted, and how often it is found in each tree."""
    columns = range(len(section.trees))
    for status in section.statuses():
        if status not in MISSING:
            yield status, [section.count(status, column) for column in columns]
    yield _GONE_OR_MOVED, [sum(section.count(s, column) for s in MISSING) for column in columns]
    yield "patches", [len(section.rows) for _ in columns]
    yield _UNDECIDED, [len(tree.undecided) for tree in section.trees]
    extras = {
        _SUPERSEDED: [
            sum(bool(row.cells[column].has) for row in section.rows) for column in columns
        ],
        _HOLDERS_GONE: [
            sum(row.cells[column].status != HELD for row in section.holders) for column in columns
        ],
    }
    yield from ((name, numbers) for name, numbers in extras.items() if any(numbers))


def details(row: Row, section: Section) -> Iterator[tuple[str, str]]:
    """Yield (trees, what there is to know beside the status), trees of which the same is true."""
    texts = [describe(row, cell, section) for cell in row.cells]
    return ((trees, text) for trees, text in by_tree(texts, section) if text)


def by_tree(texts: Iterable[str], section: Section) -> Iterator[tuple[str, str]]:
    """Yield (names of trees, text): a text per tree, those of which it is the same together."""
    said: dict[str, list[str]] = {}
    for tree, text in zip(section.trees, texts, strict=True):
        said.setdefault(text, []).append(tree.label)
    return ((", ".join(labels), text) for text, labels in said.items())


def describe(row: Row, cell: Cell, section: Section) -> str:
    """Return what there is to know beside the status; empty if there is nothing."""
    signs = [f"+{name}" for name in cell.came] + [f"-{name}" for name in cell.went]
    parts = [" ".join(signs), *cell.changed]
    if cell.moved_to:
        parts.append(f"moved to {' or '.join(cell.moved_to)}{_without(row, cell)}")
    if cell.imported_from:
        parts.append(f"from {cell.imported_from}")
    if cell.has and not _is_said(row, cell):
        parts.append(f"has {cell.has.partition(':')[2]}")
    if cell.by_digest and section.base is not None:
        parts.append("not in the base: judged by its digest")
    return "; ".join(filter(None, parts))


def _is_said(row: Row, cell: Cell) -> bool:
    """Whether the status, or a parameter that came, tells already what the tree has."""
    target, _, parameter = cell.has.removesuffix(")").partition("(")
    return target == row.target and (not parameter or parameter in cell.came)


def _without(row: Row, cell: Cell) -> str:
    """Say that only the class of a method was found elsewhere."""
    names = [re.split("[.:]", place)[-1] for place in (row.target, cell.moved_to[0])]
    return "" if names[0] == names[1] else " (its class, without it)"
