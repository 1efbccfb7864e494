# SPDX-License-Identifier: Apache-2.0
"""Puts an overlay on and takes it off: all of it or nothing.

Everything that needs room is written beside the package first. The rest are renames and links of
single files, each of which happens or does not; a manifest written before the first of them says
how to take them all back.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from vllm_ascend.overlay import state
from vllm_ascend.overlay.checkout import find_root
from vllm_ascend.overlay.errors import OverlayError
from vllm_ascend.overlay.files import digest, sha256
from vllm_ascend.overlay.inspection import status
from vllm_ascend.overlay.ownership import refuse_left_behind
from vllm_ascend.overlay.plan import OverlayPlan, files_differ
from vllm_ascend.overlay.state import Manifest, ManifestFile
from vllm_ascend.patch.upstream.source import PACKAGE


def apply(plan: OverlayPlan) -> bool:
    """Put our files over a checkout.

    Args:
        plan: See :func:`~vllm_ascend.overlay.plan.make_plan`; whether the checkout fits must have
            been asked.

    Returns:
        Whether anything was done; ``False`` if this very overlay is in force already.

    Raises:
        OverlayError: Nothing was changed: another overlay, or half of one, is there; or a file
            could not be written.
    """
    root = plan.checkout.root
    manifest = _manifest_of(plan)
    there = state.read_manifest(root)
    if there is not None:
        _refuse_another(root, there, manifest)
        return False
    try:
        _stage(plan, manifest)
    except BaseException as error:
        shutil.rmtree(state.directory(root), ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        raise OverlayError(f"{root} cannot be written, nothing was changed: {error}") from error
    try:
        for relative in manifest.directories:
            (plan.checkout.package / relative).mkdir()
        for file in manifest.files:
            os.replace(_staged(root) / file.path, plan.checkout.package / file.path)
        state.write_manifest(root, state.in_state(manifest, state.APPLIED))
        shutil.rmtree(_staged(root))
    except BaseException as error:
        _take_back(root, manifest)
        if not isinstance(error, OSError):
            raise
        raise OverlayError(f"failed and taken back, nothing was changed: {error}") from error
    return True


def revert(path: Path, *, discard_changes: bool = False) -> bool:
    """Take an overlay off: every file of vllm-ascend is as it was, byte for byte.

    Args:
        path: The checkout's root.
        discard_changes: Go on although files of ours were changed since.

    Returns:
        Whether anything was done; ``False`` if there is no overlay.

    Raises:
        OverlayError: Files were changed since, and nothing was touched; or a file could not be
            written, in which case another try goes on from there; or what stands there, or came
            back, are files of ours without a state.
    """
    root = find_root(path)
    manifest = state.read_manifest(root)
    if manifest is None:
        refuse_left_behind(root)
        return _remove_leftovers(root)
    strangers = [file.path for file in manifest.files if not _is_known(root, file)]
    if strangers and not discard_changes:
        raise OverlayError(
            f"changed since the overlay was put there: {', '.join(strangers)}. Nothing was "
            "touched; to lose these changes, say --discard-changes"
        )
    try:
        state.write_manifest(root, state.in_state(manifest, state.REVERTING))
        _take_back(root, manifest)
    except OSError as error:
        raise OverlayError(f"not all could be taken back, try again: {error}") from error
    refuse_left_behind(root)  # a version of ours took them for the originals
    return True


def _manifest_of(plan: OverlayPlan) -> Manifest:
    package = plan.checkout.package
    files = [
        ManifestFile(
            file.path,
            file.replaces,
            digest(file.content(plan.source, state.original(plan.checkout.root, file.path))),
            sha256(state.original(plan.checkout.root, file.path)) if file.replaces else None,
        )
        for file in plan.files
    ]
    parents = {
        parent.as_posix()
        for file in plan.files
        for parent in Path(file.path).parents
        if parent != Path() and not (package / parent).is_dir()
    }
    return Manifest(state.APPLYING, plan.checkout.head, tuple(files), tuple(sorted(parents)))


def _refuse_another(root: Path, there: Manifest, wanted: Manifest) -> None:
    found = status(root)
    if found.state == state.HALF_APPLIED:
        raise OverlayError(f"{root} has half of an overlay: run `overlay revert` first")
    if found.state == state.MODIFIED:
        raise OverlayError(
            f"{root} has an overlay that was changed since ({', '.join(found.modified)}): run "
            "`overlay revert` first"
        )
    if there.files != wanted.files:
        raise OverlayError(
            f"{root} has the overlay of another version: {files_differ(len(found.outdated))} from "
            "this one's; run `overlay revert` first"
        )


def _staged(root: Path) -> Path:
    return state.directory(root) / "staged"


def _stage(plan: OverlayPlan, manifest: Manifest) -> None:
    """Write all that will be renamed, keep all that will be replaced, and say what will be done."""
    root, package = plan.checkout.root, plan.checkout.package
    shutil.rmtree(state.directory(root), ignore_errors=True)  # of a try that ended before this
    state.directory(root).mkdir()
    (state.directory(root) / ".gitignore").write_text("*\n")
    for file in plan.files:
        if not os.access((package / file.path).parent, os.W_OK) and file.replaces:
            raise PermissionError(f"{(package / file.path).parent} is not writable")
        staged = _staged(root) / file.path
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(file.content(plan.source, package / file.path))
        if file.replaces:
            shutil.copymode(package / file.path, staged)
            kept = state.originals(root) / file.path
            kept.parent.mkdir(parents=True, exist_ok=True)
            _keep(package / file.path, kept)
    state.write_manifest(root, manifest)


def _remove_leftovers(root: Path) -> bool:
    """Remove what an apply left that ended before it replaced anything; say whether it was there.

    Raises:
        OverlayError: It cannot be removed.
    """
    if not state.directory(root).is_dir():
        return False
    try:
        shutil.rmtree(state.directory(root))
    except OSError as error:
        raise OverlayError(f"{state.directory(root)} cannot be removed: {error}") from error
    return True


def _keep(original: Path, kept: Path) -> None:
    """Keep a file with its owner, mode and times: by a link, or as a copy where there are none."""
    try:
        os.link(original, kept)
    except OSError:
        shutil.copy2(original, kept)


def _is_known(root: Path, file: ManifestFile) -> bool:
    """Whether a file is ours, the original, or rightly not there."""
    digest = state.digest_of(root / PACKAGE / file.path)
    return digest in (file.sha256, file.original_sha256)


def _take_back(root: Path, manifest: Manifest) -> None:
    """Undo as much as was done; again and again if need be."""
    package = root / PACKAGE
    for file in manifest.files:
        kept = state.originals(root) / file.path
        if not file.replaces:
            (package / file.path).unlink(missing_ok=True)
        elif state.digest_of(package / file.path) != file.original_sha256 and kept.exists():
            os.replace(kept, package / file.path)
    for relative in reversed(manifest.directories):
        _remove_directory(package / relative)
    shutil.rmtree(state.directory(root))


def _remove_directory(path: Path) -> None:
    """Remove a directory of ours and what Python compiled there; keep one with other files."""
    shutil.rmtree(path / "__pycache__", ignore_errors=True)
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()
