# SPDX-License-Identifier: Apache-2.0
"""Judges every patch on every tree: the table that a port starts from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from vllm_ascend.overlay.known_heads import known_heads
from vllm_ascend.overlay.patch_list import ListedPatch
from vllm_ascend.patch.upstream.source import Definition, definition_digest
from vllm_ascend.releases import Release, find_release
from vllm_ascend_evaluation.port_report.definitions import (
    BODY,
    SAME,
    SIGNATURE,
    compare,
    has_parameter,
)
from vllm_ascend_evaluation.port_report.files import PackageFiles
from vllm_ascend_evaluation.port_report.modules import (
    BOUND,
    GONE,
    IMPORTED,
    MODULE_GONE,
    UNREADABLE,
    Found,
    Modules,
)
from vllm_ascend_evaluation.port_report.moves import find_moved

NATIVE = "NATIVE"
ABSENT = "absent"
OTHER_DIGEST = "other digest"
HELD = "held"
# In the order of summaries.
STATUSES = (
    *(SAME, BODY, SIGNATURE, OTHER_DIGEST, NATIVE, ABSENT),
    *(IMPORTED, GONE, MODULE_GONE, UNREADABLE),
)
ALIAS, KEEPER = "alias", "keeper"

# Of a target that is not where it was.
MISSING = (GONE, MODULE_GONE)


@dataclass(frozen=True)
class Tree:
    """A release that is looked at.

    Attributes:
        label: What its column is called: the version if its files tell it, else its name.
        package: ``vllm`` or ``vllm_ascend``.
        version: As its files tell it.
        origin: Folder or archive.
        undecided: Targets of which :mod:`vllm_ascend.releases` says nothing: it neither knows the
            digest of their source here nor leaves the patch out of this release.
    """

    label: str
    package: str
    version: str | None
    origin: str
    undecided: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """What became of a target in one tree.

    Attributes:
        status: One of ``STATUSES``; of an alias or keeper also ``HELD``.
        came: Parameters, or members of a class, that the tree has in addition.
        went: Those that it does not have.
        changed: What else is different about its signature, in a few words each.
        has: What makes the patch superfluous, if that is there.
        moved_to: Where the name is found instead.
        imported_from: Where the module has it from.
        by_digest: The base has no such definition: judged by the digests that the patch knows.
    """

    status: str
    came: tuple[str, ...] = ()
    went: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    has: str = ""
    moved_to: tuple[str, ...] = ()
    imported_from: str = ""
    by_digest: bool = False


@dataclass(frozen=True)
class Row:
    """A target, or somebody else who holds its original, on every tree of its package.

    Attributes:
        target: ``"module:name"``.
        feature: What the patch belongs to.
        kind: Of the patch; ``ALIAS`` or ``KEEPER`` of others who hold it.
        cells: One per tree.
    """

    target: str
    feature: str
    kind: str
    cells: tuple[Cell, ...]


_Named = TypeVar("_Named", ListedPatch, Row)


@dataclass(frozen=True)
class Section:
    """The rows of one package.

    Attributes:
        package: ``vllm`` or ``vllm_ascend``.
        base: What the trees are compared with; ``None``: with the digests of the patches.
        trees: A column each.
        rows: A row per patch.
        holders: Aliases and keepers that at least one tree does not have.
    """

    package: str
    base: Tree | None
    trees: tuple[Tree, ...]
    rows: tuple[Row, ...]
    holders: tuple[Row, ...]

    def count(self, status: str, column: int) -> int:
        """Return how many patches have a status in a tree."""
        return Counter(row.cells[column].status for row in self.rows)[status]

    def statuses(self) -> list[str]:
        """Return those that occur, in the order of summaries."""
        found = {cell.status for row in self.rows for cell in row.cells}
        return [status for status in STATUSES if status in found]


@dataclass(frozen=True)
class PortReport:
    """What a port would meet."""

    sections: tuple[Section, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": 1, "sections": [_as_json(section) for section in self.sections]}


def make_section(
    entries: Sequence[ListedPatch], base: PackageFiles | None, trees: Sequence[PackageFiles]
) -> Section:
    """Look up every patch of the trees' package in each of them.

    Args:
        entries: Those of other packages are passed over; rows are put together by module.
        base: The release that the patches were written for.
        trees: At least one; all of one package.
    """
    package = trees[0].package
    mine = _by_module([entry for entry in entries if entry.package == package])
    original = Modules(base) if base is not None else None
    holders = _by_module([*_holders(entries, package)])
    columns, held, shown = [], [], []
    for files, label in zip(trees, _labels(trees), strict=True):
        modules = Modules(files)
        undecided = tuple(_undecided(mine, modules, _release_of(files)))
        shown.append(replace(_tree(files, label), undecided=undecided))
        columns.append(_column(mine, modules, original))
        held.append([_judge_holder(holder.target, modules) for holder in holders])
    return Section(
        package=package,
        base=None if base is None else _tree(base, _labels([base])[0]),
        trees=tuple(shown),
        rows=tuple(
            Row(entry.target, entry.feature, entry.kind, tuple(cells))
            for entry, *cells in zip(mine, *columns, strict=True)
        ),
        holders=tuple(
            replace(holder, cells=tuple(cells))
            for holder, *cells in zip(holders, *held, strict=True)
            if any(cell.status != HELD for cell in cells)
        ),
    )


def _judge(entry: ListedPatch, modules: Modules, base: Modules | None) -> Cell:
    has = entry.superseded_by or ""
    if has and not _is_present(has, modules):
        has = ""
    found = modules.look_up(entry.target)
    if entry.adds:
        return _judge_added(entry, found, modules, has)
    if found.how == IMPORTED:
        return replace(_judge_imported(entry, modules), has=has)
    if found.how != BOUND:
        return Cell(found.how, has=has)
    original = base.look_up(entry.target) if base is not None else None
    if original is None or original.how != BOUND:
        return Cell(_by_digest(found, entry.digests), has=has, by_digest=True)
    comparison = compare(original.nodes, found.nodes)
    return Cell(**asdict(comparison), has=has)


def _judge_imported(entry: ListedPatch, modules: Modules) -> Cell:
    origin = modules.resolve(entry.target)
    is_attribute = "." in entry.target.partition(":")[2]
    if is_attribute and origin.how == GONE:  # its class is imported, and does not have it
        return Cell(GONE)
    return Cell(IMPORTED, imported_from=origin.origin or origin.where)


def _judge_added(entry: ListedPatch, found: Found, modules: Modules, has: str) -> Cell:
    """Say whether the tree brings it itself; without its owner it could not be added either."""
    if found.how == IMPORTED:
        found = modules.resolve(entry.target)
    if found.how in (BOUND, IMPORTED) or has:
        return Cell(NATIVE, has=has)
    owner = entry.target.rpartition(".")[0]
    if found.how == GONE and ":" in owner and modules.look_up(owner).how == GONE:
        return Cell(GONE)
    return Cell(ABSENT if found.how == GONE else found.how)


def _by_digest(found: Found, digests: Iterable[str]) -> str:
    node = found.nodes[-1]  # as an import would leave it
    is_known = isinstance(node, Definition) and definition_digest(found.lines, node) in digests
    return SAME if is_known else OTHER_DIGEST


def _release_of(files: PackageFiles) -> Release | None:
    """Return the supported release that a tree is, or that its vllm-ascend is made for."""
    made_for = {head.version: head.vllm for head in known_heads()}
    is_vllm = files.package == "vllm"
    return find_release((files.version if is_vllm else made_for.get(files.version or "")) or "")


def _undecided(
    entries: Iterable[ListedPatch], modules: Modules, release: Release | None
) -> Iterator[str]:
    left_out = {*release.native, *release.absent} if release is not None else ()
    moved = release.moved if release is not None else {}
    for entry in entries:
        place = moved.get(entry.target, entry.target)
        found = modules.look_up(place)
        if found.how == IMPORTED:
            found = modules.resolve(place)
        is_free = entry.adds and found.how == GONE  # nothing stands where it is added
        is_known = found.how == BOUND and _by_digest(found, entry.digests) == SAME
        if not (entry.target in left_out or is_free or is_known):
            yield entry.target


def _is_present(evidence: str, modules: Modules) -> bool:
    """Whether a tree has what makes a patch superfluous, its own or inherited."""
    target, _, parameter = evidence.removesuffix(")").partition("(")
    found = modules.resolve(target)
    return found.how == BOUND and (not parameter or has_parameter(found.nodes, parameter))


def _by_module(named: Sequence[_Named]) -> list[_Named]:
    """Put together what is in one module, modules in the order in which they come first."""
    modules = [one.target.partition(":")[0] for one in named]
    first = {module: modules.index(module) for module in modules}
    return sorted(named, key=lambda one: first[one.target.partition(":")[0]])


def _column(entries: Sequence[ListedPatch], modules: Modules, base: Modules | None) -> list[Cell]:
    cells = [_judge(entry, modules, base) for entry in entries]
    gone = [e.target for cell, e in zip(cells, entries, strict=True) if cell.status in MISSING]
    moved = find_moved(modules, gone, base)
    return [
        replace(cell, moved_to=moved.get(entry.target, ()))
        for cell, entry in zip(cells, entries, strict=True)
    ]


def _holders(entries: Iterable[ListedPatch], package: str) -> Iterator[Row]:
    """Yield every alias and keeper in a package once, without cells."""
    seen = set()
    for entry in entries:
        named = [(name, ALIAS) for name in entry.aliases]
        named += [(name, KEEPER) for name in entry.keepers]
        for name, kind in named:
            if name.partition(".")[0] == package and (name, kind) not in seen:
                seen.add((name, kind))
                yield Row(name, entry.feature, kind, ())


def _judge_holder(target: str, modules: Modules) -> Cell:
    found = modules.look_up(target)
    return Cell(HELD if found.how in (BOUND, IMPORTED) else found.how)


def _labels(trees: Sequence[PackageFiles]) -> list[str]:
    """Return what columns are called: different names, even for two trees of one version."""
    labels = [files.version or Path(files.origin).resolve().name for files in trees]
    counts, seen = Counter(labels), Counter[str]()
    for ordinal, label in enumerate(labels):
        seen[label] += 1
        if counts[label] > 1:
            labels[ordinal] = f"{label} ({seen[label]})"
    return labels


def _tree(files: PackageFiles, label: str) -> Tree:
    return Tree(label, files.package, files.version, str(files.origin))


def _as_json(section: Section) -> dict[str, Any]:
    labels = [tree.label for tree in section.trees]
    return {
        "package": section.package,
        "base": section.base and asdict(section.base),
        "trees": [
            {**asdict(tree), "counts": {s: section.count(s, column) for s in STATUSES}}
            for column, tree in enumerate(section.trees)
        ],
        "rows": [_row_as_json(row, labels) for row in section.rows],
        "holders": [_row_as_json(row, labels) for row in section.holders],
    }


def _row_as_json(row: Row, labels: Sequence[str]) -> dict[str, Any]:
    cells = {label: asdict(cell) for label, cell in zip(labels, row.cells, strict=True)}
    return {"target": row.target, "feature": row.feature, "kind": row.kind, "cells": cells}
