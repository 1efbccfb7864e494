# SPDX-License-Identifier: Apache-2.0
"""What a checkout of vllm-ascend is: which head, changed or not, fit for the patches or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_ascend.deployment import is_checkout
from vllm_ascend.overlay.errors import OverlayError
from vllm_ascend.overlay.functions import changed_inside
from vllm_ascend.overlay.known_heads import digest_files, known_heads
from vllm_ascend.overlay.patch_list import listed_patches
from vllm_ascend.overlay.states import states_outside
from vllm_ascend.overlay.surface import missing_names
from vllm_ascend.patch.upstream.source import PACKAGE, misfits
from vllm_ascend.releases import Release, find_release

_NOT_RECORDED = "any function (none is on record)"


@dataclass(frozen=True)
class Checkout:
    """A checkout, judged by its files.

    Attributes:
        root: Its directory.
        release: Which of the supported ones it is, or is nearest to.
        head: The supported commit whose files it has; ``None`` if they are none's.
        changed: Files that differ from the supported head that is nearest, if ``head`` is ``None``.
        nearest: That head.
        out_of_force: Those of them that ours take the place of: under an overlay nothing runs them.
        inside: Of what the overlay rests on, the functions that differ from the nearest head's, and
            the files that ours take the place of.
        problems: What our patches and modules miss in it; empty if they fit.
    """

    root: Path
    release: Release
    head: str | None
    nearest: str
    changed: tuple[str, ...]
    out_of_force: tuple[str, ...]
    inside: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def package(self) -> Path:
        """The ``vllm_ascend`` directory."""
        return self.root / PACKAGE

    @property
    def needs_allow_unknown(self) -> bool:
        """Whether the overlay goes over it only if its user says so."""
        return self.head is None and bool(self.inside)


def find_root(path: Path) -> Path:
    """Return the real directory of a checkout.

    Raises:
        OverlayError: There is none, or it is this project's own tree.
    """
    if not path.exists():
        raise OverlayError(f"{path} does not exist")
    root = path.resolve()
    if not (root / PACKAGE / "__init__.py").is_file() or not is_checkout(root / PACKAGE):
        raise OverlayError(f"{path} is not a checkout of vllm-ascend (no {PACKAGE}/platform.py)")
    if (root / PACKAGE).is_symlink():
        raise OverlayError(f"{root / PACKAGE} is a link: name the checkout that it points to")
    return root


def inspect(
    root: Path, originals: Path | None = None, ours: frozenset[str] = frozenset()
) -> Checkout:
    """Judge a checkout.

    Args:
        root: See :func:`find_root`.
        originals: Where the originals of replaced files are, if an overlay is in force.
        ours: Files that the overlay has added, relative to the package.
    """
    package = root / PACKAGE
    found = {path: digest for path, digest in digest_files(package) if path not in ours}
    if originals is not None:
        found.update(digest_files(originals))
    supported = [head for head in known_heads() if head.is_supported]
    differences = {head.commit: _changed(found, head.files) for head in supported}
    nearest = min(differences, key=lambda head: len(differences[head]))
    head = None if differences[nearest] else nearest
    release = next(find_release(head.vllm) for head in supported if head.commit == nearest)
    assert release is not None, "a supported head is of a supported release"
    problems: tuple[str, ...] = ()
    if originals is None:
        problems = (
            *states_outside(package, release),
            *missing_names(package, release),
            *_misfits(package, release),
        )
    changed = tuple(differences[nearest])
    covered = tuple(path for path in changed if path in found and path in release.replaced)
    inside = (*covered, *_changed_inside(package, release, nearest)) if changed else ()
    return Checkout(root, release, head, nearest, changed, covered, inside, problems)


def _changed_inside(package: Path, release: Release, nearest: str) -> list[str]:
    """Compare functions with those of the nearest head, or else of another one of its release."""
    heads = [head for head in known_heads() if head.vllm == release.vllm and head.functions]
    heads.sort(key=lambda head: head.commit != nearest)
    return changed_inside(package, release, heads[0].functions) if heads else [_NOT_RECORDED]


def _misfits(package: Path, release: Release) -> list[str]:
    return misfits(package, {patch.target: patch.digests for patch in listed_patches(release)})


def _changed(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    paths = sorted(found.keys() | expected.keys())
    return [path for path in paths if found.get(path) != expected.get(path)]
