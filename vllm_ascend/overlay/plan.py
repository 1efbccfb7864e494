# SPDX-License-Identifier: Apache-2.0
"""What an overlay would do to a checkout, decided before anything is touched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_ascend.deployment import own_package
from vllm_ascend.overlay import state
from vllm_ascend.overlay.checkout import Checkout, find_root, inspect
from vllm_ascend.overlay.errors import OverlayError
from vllm_ascend.overlay.files import OverlayFile, overlay_files
from vllm_ascend.overlay.ownership import refuse_left_behind
from vllm_ascend.overlay.patch_list import ListedPatch, listed_patches
from vllm_ascend.overlay.release import unsupported

_NAMES_SHOWN = 5


@dataclass(frozen=True)
class OverlayPlan:
    """Everything that :func:`~vllm_ascend.overlay.transaction.apply` does.

    Attributes:
        checkout: Where.
        source: Our package directory.
        files: What is put there.
        patches: What is changed when it is imported.
    """

    checkout: Checkout
    source: Path
    files: tuple[OverlayFile, ...]
    patches: tuple[ListedPatch, ...]

    def refuse_misfit(self, *, allow_unknown: bool) -> None:
        """Refuse a checkout that the overlay does not fit, or may not.

        Args:
            allow_unknown: Accept files that are no known head's, as long as nothing is missing.

        Raises:
            OverlayError: Says what is wrong and what to do.
        """
        checkout = self.checkout
        if checkout.problems:
            raise OverlayError(
                f"{checkout.root} does not fit, nothing was changed: {'; '.join(checkout.problems)}"
            )
        if checkout.needs_allow_unknown and not allow_unknown:
            inside = checkout.inside
            names = ", ".join(inside[:_NAMES_SHOWN])
            more = len(inside) - _NAMES_SHOWN
            covered = describe_out_of_force(checkout.out_of_force)
            differ = "differs" if len(inside) == 1 else "differ"
            raise OverlayError(
                f"{checkout.root} is not a known state of vllm-ascend, and what the overlay rests "
                f"on has changed: {names}{f' and {more} more' if more > 0 else ''} {differ} from "
                f"commit {checkout.nearest[:8]}. Nothing was changed. Compare these first; "
                "--allow-unknown then applies it, and npu-check on a node says whether it works"
                f"{f'. {covered}' if covered else ''}"
            )


def describe_refusal(checkout: Checkout) -> str:
    """Say that ``apply`` would refuse a checkout, and what would help; empty if it would not."""
    if checkout.problems:
        return "apply would refuse this, with --allow-unknown too"
    if checkout.needs_allow_unknown:
        return "apply would refuse this; apply --allow-unknown would not: compare these first"
    return ""


def describe_out_of_force(paths: Sequence[str]) -> str:
    """Say which changes an overlay covers; empty if it covers none."""
    if not paths:
        return ""
    return (
        "Changes in these files are out of force while the overlay is there, because files of "
        f"ours take their place: {', '.join(paths)}"
    )


def describe_unknown(checkout: Checkout) -> str:
    """Say that a checkout is no known commit, but fits; empty if it is one, or does not fit."""
    if checkout.head is not None or checkout.inside:
        return ""
    differ = files_differ(len(checkout.changed))
    return (
        f"This is no known state of vllm-ascend: {differ} from commit {checkout.nearest[:8]}, but "
        "no function that the overlay rests on. Run npu-check on a node before you serve"
    )


def files_differ(count: int) -> str:
    """Say that so many files differ."""
    return "1 file differs" if count == 1 else f"{count} files differ"


def make_plan(path: Path) -> OverlayPlan:
    """Plan an overlay; also over a checkout that has one, as if it had not.

    Raises:
        OverlayError: ``path`` is no checkout, or one for another vLLM, or one in which links or a
            file of vllm-ascend stand where a file of ours has to go, or one that has files of ours
            and not the overlay's state.
    """
    root = find_root(path)
    manifest = state.read_manifest(root)
    if manifest is None:
        refuse_left_behind(root)
        another = unsupported(root)
        if another:
            raise OverlayError(f"{root}: {another}")
    added = manifest.joined if manifest else frozenset()
    checkout = inspect(root, state.originals(root) if manifest else None, added)
    source = own_package()
    files = tuple(overlay_files(source, checkout.package, checkout.release, added))
    for file in files:
        _refuse_obstacle(checkout.package, file, is_ours=file.path in added)
    return OverlayPlan(checkout, source, files, listed_patches(checkout.release))


def _refuse_obstacle(package: Path, file: OverlayFile, *, is_ours: bool) -> None:
    target = package / file.path
    for path in (target, *target.parents):
        if path == package:
            break
        if path.is_symlink():
            raise OverlayError(f"{path} is a link; the overlay would write somewhere else")
    if not file.replaces and not is_ours and os.path.lexists(target):
        raise OverlayError(f"{target} is in the way: vllm-ascend has a file of that name")
