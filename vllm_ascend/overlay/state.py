# SPDX-License-Identifier: Apache-2.0
"""What an overlay leaves in a checkout to be judged and taken back: manifest and originals."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

from vllm_ascend.overlay.errors import OverlayError
from vllm_ascend.overlay.files import sha256
from vllm_ascend.patch.upstream.source import PACKAGE

STATE_DIRECTORY = ".vllm-ascend-backport"

ABSENT = "absent"
APPLYING = "applying"
APPLIED = "applied"
REVERTING = "reverting"
INTERRUPTED = "interrupted"
HALF_APPLIED = "half-applied"
MODIFIED = "modified"
OUTDATED = "outdated"
LEFT_BEHIND = "left-behind"


@dataclass(frozen=True)
class ManifestFile:
    """One file of ours in a checkout.

    Attributes:
        path: Relative to the package.
        replaces: An original of this path is kept.
        sha256: Of our file.
        original_sha256: Of the original; ``None`` if there was none.
    """

    path: str
    replaces: bool
    sha256: str
    original_sha256: str | None


@dataclass(frozen=True)
class Manifest:
    """What an overlay has done, or was doing when it was interrupted.

    Attributes:
        state: ``applying``, ``applied`` or ``reverting``.
        head: Commit of the checkout, ``None`` if unknown.
        files: Everything put there.
        directories: Directories made for it, relative to the package, parents first.
    """

    state: str
    head: str | None
    files: tuple[ManifestFile, ...]
    directories: tuple[str, ...]

    @property
    def joined(self) -> frozenset[str]:
        """The files that vllm-ascend has none of, relative to the package."""
        return frozenset(file.path for file in self.files if not file.replaces)


def directory(root: Path) -> Path:
    """Return where a checkout's overlay keeps its state."""
    return root / STATE_DIRECTORY


def originals(root: Path) -> Path:
    """Return where the replaced files are kept, with their paths."""
    return directory(root) / "originals"


def original(root: Path, path: str) -> Path:
    """Return where vllm-ascend's own file is: kept by an overlay, or in its place.

    Args:
        path: Relative to the package.
    """
    kept = originals(root) / path
    return kept if kept.is_file() else root / PACKAGE / path


def read_manifest(root: Path) -> Manifest | None:
    """Return the manifest of a checkout; ``None`` if no overlay was begun.

    Raises:
        OverlayError: It cannot be read.
    """
    path = directory(root) / "manifest.json"
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(ManifestFile(**file) for file in content.pop("files"))
        manifest = Manifest(
            **{**content, "files": files, "directories": tuple(content["directories"])}
        )
        _refuse_outside(root, manifest)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise OverlayError(f"{path} cannot be read ({error}); nothing was changed") from error
    return manifest


def _refuse_outside(root: Path, manifest: Manifest) -> None:
    """Refuse a manifest that names anything outside of the package: it is not one of ours.

    What it names is replaced and removed. A link on the way leads outside as well as ``..`` does.
    """
    for base in (root / PACKAGE, originals(root)):
        files = [(file.path, (base / file.path).parent) for file in manifest.files]
        for name, place in [*files, *((name, base / name) for name in manifest.directories)]:
            path = PurePosixPath(name)
            is_plain = path.parts and not path.is_absolute() and ".." not in path.parts
            if not (is_plain and place.resolve().is_relative_to(base.resolve())):
                raise ValueError(f"{name!r} is not in the package")


def standing(root: Path) -> str:
    """Return what the manifest says: ``absent``, ``interrupted``, ``half-applied`` or ``applied``.

    Raises:
        OverlayError: It cannot be read.
    """
    manifest = read_manifest(root)
    if manifest is None:
        return INTERRUPTED if directory(root).is_dir() else ABSENT
    return APPLIED if manifest.state == APPLIED else HALF_APPLIED


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Write the manifest so that it is either the old one or the new one, also after a crash."""
    path = directory(root) / "manifest.json"
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(asdict(manifest), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def in_state(manifest: Manifest, state: str) -> Manifest:
    """Return the manifest with another state."""
    return replace(manifest, state=state)


def digest_of(path: Path) -> str | None:
    """Return the digest of a plain file; ``None`` if there is none."""
    return sha256(path) if path.is_file() and not path.is_symlink() else None
