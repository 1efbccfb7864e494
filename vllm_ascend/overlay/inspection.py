# SPDX-License-Identifier: Apache-2.0
"""What overlay lies over a checkout: whole, of which version, and what it covers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vllm_ascend.deployment import own_package
from vllm_ascend.overlay.checkout import Checkout, find_root, inspect
from vllm_ascend.overlay.files import digest, overlay_files
from vllm_ascend.overlay.ownership import files_of_ours
from vllm_ascend.overlay.release import unsupported
from vllm_ascend.overlay.state import (
    APPLIED,
    HALF_APPLIED,
    LEFT_BEHIND,
    MODIFIED,
    OUTDATED,
    Manifest,
    ManifestFile,
    digest_of,
    original,
    originals,
    read_manifest,
    standing,
)
from vllm_ascend.patch.upstream.source import PACKAGE


@dataclass(frozen=True)
class OverlayStatus:
    """What is there.

    Attributes:
        state: ``absent``, ``applied``, ``outdated``, ``half-applied``, ``modified``,
            ``left-behind``, or ``interrupted`` where no file of the package is ours.
        head: Commit that the overlay was put on, ``None`` if there is none or it is unknown.
        files: Files of ours.
        modified: Files of ours that are not as they were put there.
        unsupported: Why there can be none: what the checkout is instead; empty if it is not.
        left_behind: Files of ours without a state by which they could be taken back.
        outdated: Files that this version of ours would put there otherwise, or not at all.
        out_of_force: Files of vllm-ascend that were changed, and that ours have taken the place of.
    """

    state: str
    head: str | None = None
    files: int = 0
    modified: tuple[str, ...] = ()
    unsupported: str = ""
    left_behind: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    out_of_force: tuple[str, ...] = ()


def status(path: Path) -> OverlayStatus:
    """Say what is there.

    Raises:
        OverlayError: ``path`` is no checkout, or the overlay's manifest cannot be read.
    """
    root = find_root(path)
    manifest = read_manifest(root)
    if manifest is None:
        left = files_of_ours(root / PACKAGE)
        if left:
            return OverlayStatus(LEFT_BEHIND, files=len(left), left_behind=left)
        return OverlayStatus(standing(root), unsupported=unsupported(root))
    if manifest.state != APPLIED:
        return OverlayStatus(HALF_APPLIED, manifest.head, len(manifest.files))
    modified = tuple(file.path for file in manifest.files if not _is_intact(root, file))
    checkout = inspect(root, originals(root), manifest.joined)
    outdated = _outdated(checkout, manifest)
    state = MODIFIED if modified else OUTDATED if outdated else APPLIED
    return OverlayStatus(
        state,
        manifest.head,
        len(manifest.files),
        modified,
        outdated=outdated,
        out_of_force=checkout.out_of_force,
    )


def _is_intact(root: Path, file: ManifestFile) -> bool:
    if file.replaces and digest_of(originals(root) / file.path) != file.original_sha256:
        return False
    return digest_of(root / PACKAGE / file.path) == file.sha256


def _outdated(checkout: Checkout, manifest: Manifest) -> tuple[str, ...]:
    """Return the files in which the overlay differs from what would be put there now."""
    source = own_package()
    if source.samefile(checkout.package):
        return ()  # it is what this command runs from
    wanted = {
        file.path: digest(file.content(source, original(checkout.root, file.path)))
        for file in overlay_files(source, checkout.package, checkout.release, manifest.joined)
    }
    there = {file.path: file.sha256 for file in manifest.files}
    paths = sorted(wanted.keys() | there.keys())
    return tuple(path for path in paths if wanted.get(path) != there.get(path))
