# SPDX-License-Identifier: Apache-2.0
"""The patches as data, with what every supported release knows of their targets."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_ascend.overlay.patch_list import ADDED, ADDED_FIELD, read_rows
from vllm_ascend.releases import SUPPORTED


@dataclass(frozen=True)
class PatchEntry:
    """What the report has to know of a patch.

    Attributes:
        target: As in :class:`~vllm_ascend.patch.table.Patch`; so are the others.
        feature: What it belongs to.
        kind: One of :mod:`~vllm_ascend.overlay.patch_list`.
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


def read_patch_table() -> tuple[PatchEntry, ...]:
    """Return all patches, one per target; neither vLLM nor vllm-ascend is imported."""
    return tuple(
        PatchEntry(
            target=row["target"],
            feature=row["feature"],
            kind=row["kind"],
            evidence=row.get("superseded_by"),
            digests=_digests(row["target"]),
            aliases=tuple(row.get("aliases", ())),
            keepers=tuple(row.get("keepers", ())),
        )
        for row in read_rows()
    )


def _digests(target: str) -> tuple[str, ...]:
    """Return every digest that the original has in a supported release."""
    known = (digest for release in SUPPORTED for digest in release.digests_of(target))
    return tuple(dict.fromkeys(known))
