# SPDX-License-Identifier: Apache-2.0
"""The patch tables as data. Reading them imports vLLM, so that a child process does it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.deployment import own_package
from vllm_ascend.doctor import children
from vllm_ascend.patch.table import Add, AddField, Patch, PatchError, Rebind, Wrap
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend.releases import SUPPORTED

ADDED, ADDED_FIELD, CHANGED, REPLACED = "added", "added field", "changed", "replaced"
# The folder in front is ours, not the current one: that may be the tree that is looked at.
_CHILD = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; "
    f"from {__name__} import main; main(sys.argv[2])"
)


@dataclass(frozen=True)
class PatchEntry:
    """What the report has to know of a patch.

    Attributes:
        target: As in :class:`~vllm_ascend.patch.table.Patch`; so are the others.
        feature: What it belongs to.
        kind: ``ADDED``, ``ADDED_FIELD``, ``CHANGED`` or ``REPLACED``.
        evidence: What a tree has that makes the patch superfluous: ``"module:Class.name"`` or, a
            parameter, ``"module:Class.name(parameter)"``.
        digests: Those that the original may have.
        aliases: Who else holds the original and is changed with it.
        keepers: Who else holds the original and keeps it.
    """

    target: str
    feature: str
    kind: str
    evidence: str | None = None
    digests: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    keepers: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        """Name of the package that is patched."""
        return self.target.partition(".")[0]

    @property
    def adds(self) -> bool:
        """Whether it brings something, instead of changing it."""
        return self.kind in (ADDED, ADDED_FIELD)


@dataclass(frozen=True)
class PatchTable:
    """All patches, and the vLLM that they were read beside.

    Attributes:
        entries: One per target.
        vllm: The folder that holds that vLLM's package.
    """

    entries: tuple[PatchEntry, ...]
    vllm: Path


def read_patch_table() -> PatchTable:
    """Return the patches of all tables.

    Raises:
        BadInputError: The installed vLLM is not one that they can be read beside.
        ModuleNotFoundError: There is no vLLM, or something that comes with it is missing.
    """
    answer = children.ask(["-c", _CHILD, str(own_package().parent)], environ=child_environment({}))
    if "lacks" in answer:
        raise ModuleNotFoundError(f"No module named {answer['lacks']!r}", name=answer["lacks"])
    problem = answer.get("failed") or answer.get("died")
    if problem:
        raise BadInputError(f"the patch tables cannot be read: {problem}")
    entries = (PatchEntry(**_with_tuples(row)) for row in answer["entries"])
    return PatchTable(tuple(_merged(entries)), Path(answer["vllm"]))


def entry_of(patch: Patch) -> PatchEntry:
    """Return what the report has to know of a patch."""
    return PatchEntry(
        target=patch.target,
        feature=patch.feature,
        kind=_kind(patch),
        evidence=patch.superseded_by,
        digests=_digests(patch),
        aliases=patch.aliases if isinstance(patch, Wrap) else (),
        keepers=patch.keepers if isinstance(patch, Rebind) else (),
    )


def _kind(patch: Patch) -> str:
    if isinstance(patch, Add):
        return ADDED_FIELD if isinstance(patch, AddField) else ADDED
    return REPLACED if isinstance(patch, Rebind) else CHANGED


def _digests(patch: Patch) -> tuple[str, ...]:
    tables = (release.table([patch]) for release in SUPPORTED)
    return tuple(
        dict.fromkeys(digest for table in tables for p in table for digest in p.known_digests)
    )


def _merged(entries: Iterable[PatchEntry]) -> Iterator[PatchEntry]:
    """Yield one entry for each target, with what several tables say of it.

    What some releases lack and others have to have changed is an addition.
    """
    found: dict[str, PatchEntry] = {}
    for entry in entries:
        known = found.get(entry.target, entry)
        found[entry.target] = replace(
            known if known.adds else entry,
            evidence=known.evidence or entry.evidence,
            digests=_union(known.digests, entry.digests),
            aliases=_union(known.aliases, entry.aliases),
            keepers=_union(known.keepers, entry.keepers),
        )
    yield from found.values()


def _union(these: Sequence[str], those: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*these, *those)))


def _with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}


def main(answer_file: str) -> None:
    """Write the entries and where vLLM is; the child's part."""
    Path(answer_file).write_text(json.dumps(_answer()))


def _answer() -> dict[str, Any]:
    try:
        from vllm_ascend.patch.ledger import collect_patches

        entries = [asdict(entry_of(patch)) for patch in collect_patches()]
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("vllm_ascend"):
            return {"lacks": error.name}
        raise
    except PatchError as error:
        return {"failed": str(error)}
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None, "the patches have imported it"
    return {"entries": entries, "vllm": str(Path(spec.origin).parents[1])}
