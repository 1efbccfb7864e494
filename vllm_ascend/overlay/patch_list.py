# SPDX-License-Identifier: Apache-2.0
"""The patches of vLLM and vllm-ascend as data, so that nothing of either has to be imported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from vllm_ascend.patch.table import Add, AddField, Override, Patch, Rebind
from vllm_ascend.releases import SUPPORTED, Release

PATCH_LIST = Path(__file__).with_name("patches.json")
ADDED, ADDED_FIELD, CHANGED, REPLACED = "added", "added field", "changed", "replaced"
OVERRIDDEN = "overridden"


@dataclass(frozen=True)
class ListedPatch:
    """What reports say of a patch, and what they need to judge it by source.

    Attributes:
        target: As in :class:`~vllm_ascend.patch.table.Patch`; so are the others.
        feature: What it belongs to.
        kind: One of the five above.
        superseded_by: What a release has that makes the patch superfluous.
        why: The reason, in a sentence.
        digests: Those that the original may have; none if it must not exist.
        aliases: Who else holds the original and is changed with it.
        keepers: Who else holds the original and keeps it.
    """

    target: str
    feature: str
    kind: str
    superseded_by: str | None = None
    why: str = ""
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


@cache
def all_patches() -> tuple[ListedPatch, ...]:
    """Return every patch, with the digests that its original has in any supported release."""
    return tuple(
        ListedPatch(
            digests=tuple(dict.fromkeys(d for r in SUPPORTED for d in r.digests_of(row["target"]))),
            aliases=tuple(row.pop("aliases", ())),
            keepers=tuple(row.pop("keepers", ())),
            **row,
        )
        for row in json.loads(PATCH_LIST.read_text(encoding="utf-8"))
    )


@cache
def listed_patches(release: Release) -> tuple[ListedPatch, ...]:
    """Return every patch that is in force over a checkout of a release, with its digests there."""
    left = release.native.keys() | release.absent.keys()
    return tuple(
        replace(patch, digests=release.digests_of(patch.target))
        for patch in all_patches()
        if patch.target not in left
    )


def render(patches: Sequence[Patch]) -> str:
    """Return the list as JSON; the same tables give the same text.

    A row has ``target``, ``feature``, ``why`` and ``kind`` (one of the five above), and, if the
    patch has them, ``superseded_by``, ``aliases`` and ``keepers``. The original's digests are in
    :mod:`vllm_ascend.releases`.
    """
    rows = []
    for patch in patches:
        told = {
            "target": patch.target,
            "feature": patch.feature,
            "why": patch.why,
            "kind": kind_of(patch),
            "superseded_by": patch.superseded_by,
            "aliases": getattr(patch, "aliases", ()),
            "keepers": getattr(patch, "keepers", ()),
        }
        rows.append({name: value for name, value in told.items() if value})
    return json.dumps(rows, indent=1) + "\n"


def kind_of(patch: Patch) -> str:
    """Return what a patch does to its target."""
    if isinstance(patch, Add):
        return ADDED_FIELD if isinstance(patch, AddField) else ADDED
    if isinstance(patch, Override):
        return OVERRIDDEN
    return REPLACED if isinstance(patch, Rebind) else CHANGED
