# SPDX-License-Identifier: Apache-2.0
"""The patches of vLLM and vllm-ascend as data, so that nothing of either has to be imported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vllm_ascend.patch.features import DSV4_ON_CPU
from vllm_ascend.patch.table import Add, AddField, Patch, Rebind
from vllm_ascend.patch.upstream.source import PACKAGE
from vllm_ascend.releases import Release

PATCH_LIST = Path(__file__).with_name("patches.json")
ADDED, ADDED_FIELD, CHANGED, REPLACED = "added", "added field", "changed", "replaced"


@dataclass(frozen=True)
class ListedPatch:
    """What a report says of a patch, and what it needs to be judged by source.

    Attributes:
        target: As in :class:`~vllm_ascend.patch.table.Patch`.
        feature: What it belongs to.
        why: The reason, in a sentence.
        digests: Those that the original may have in a release; none if it must not exist.
    """

    target: str
    feature: str
    why: str
    digests: tuple[str, ...]

    @property
    def is_of_checkout(self) -> bool:
        """Whether it changes a module of vllm-ascend, not of vLLM."""
        return self.target.startswith(f"{PACKAGE}.")


def read_rows() -> list[dict[str, Any]]:
    """Return every patch as data; :func:`render` says with which fields."""
    return json.loads(PATCH_LIST.read_text(encoding="utf-8"))


@cache
def listed_patches(release: Release) -> tuple[ListedPatch, ...]:
    """Return every patch that is in force over a checkout of a release."""
    left = release.native.keys() | release.absent.keys()
    return tuple(
        ListedPatch(row["target"], row["feature"], row["why"], release.digests_of(row["target"]))
        for row in read_rows()
        if row["target"] not in left and row["feature"] != DSV4_ON_CPU["feature"]
    )


def render(patches: Sequence[Patch]) -> str:
    """Return the list as JSON; the same tables give the same text.

    A row has ``target``, ``feature``, ``why`` and ``kind`` (one of the four above), and, if the
    patch has them, ``superseded_by``, ``aliases`` and ``keepers``. The original's digests are in
    :mod:`vllm_ascend.releases`. A target that is declared twice is one row, that of the addition:
    the releases that take the overlay lack the original.
    """
    rows: dict[str, dict[str, Any]] = {patch.target: {} for patch in patches}
    for patch in sorted(patches, key=lambda patch: not isinstance(patch, Add)):
        row = rows[patch.target]
        of_both = {
            name: [*dict.fromkeys((*row.get(name, ()), *getattr(patch, name, ())))]
            for name in ("aliases", "keepers")
        }
        told = {
            "target": patch.target,
            "feature": patch.feature,
            "why": patch.why,
            "kind": kind_of(patch),
            "superseded_by": patch.superseded_by,
        }
        row |= {name: value for name, value in (told | row | of_both).items() if value}
    return json.dumps([*rows.values()], indent=1) + "\n"


def kind_of(patch: Patch) -> str:
    """Return what a patch does to its target."""
    if isinstance(patch, Add):
        return ADDED_FIELD if isinstance(patch, AddField) else ADDED
    return REPLACED if isinstance(patch, Rebind) else CHANGED
