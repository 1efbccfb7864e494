# SPDX-License-Identifier: Apache-2.0
"""The patches of vLLM and vllm-ascend as data, so that nothing of either has to be imported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vllm_ascend.patch.table import Add, Patch
from vllm_ascend.patch.upstream.source import PACKAGE
from vllm_ascend.releases import Release

PATCH_LIST = Path(__file__).with_name("patches.json")


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


@cache
def listed_patches(release: Release) -> tuple[ListedPatch, ...]:
    """Return every patch that is in force over a checkout of a release."""
    rows = json.loads(PATCH_LIST.read_text(encoding="utf-8"))
    left = release.native.keys() | release.absent.keys()
    return tuple(
        ListedPatch(**row, digests=release.digests_of(row["target"]))
        for row in rows
        if row["target"] not in left
    )


def render(patches: Sequence[Patch]) -> str:
    """Return the list as JSON; the same tables give the same text.

    What the original's digests are, the releases say. Of what is declared twice, the addition is
    listed: those releases that take the overlay lack the original.
    """
    first: dict[str, Patch] = {}
    for patch in sorted(patches, key=lambda patch: not isinstance(patch, Add)):
        first.setdefault(patch.target, patch)
    rows = [
        {name: getattr(patch, name) for name in ("target", "feature", "why")}
        for patch in patches
        if first[patch.target] is patch
    ]
    return json.dumps(rows, indent=1) + "\n"
