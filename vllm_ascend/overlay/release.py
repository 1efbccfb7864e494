# SPDX-License-Identifier: Apache-2.0
"""Which release of vllm-ascend a checkout is, and of which vLLM: by its files, without git."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_ascend.overlay.known_heads import KnownHead, head_of, known_heads
from vllm_ascend.patch.upstream.source import PACKAGE
from vllm_ascend.releases import SUPPORTED, takes_overlay

# Where a version stands: written by builds, then by source distributions, then by git.
_VERSION_FILES = (
    (f"{PACKAGE}/_version.py", re.compile(r"^(?:__version__ = )?version = ['\"]([^'\"]+)", re.M)),
    ("PKG-INFO", re.compile(r"^Version: (\S+)", re.M)),
    (f"{PACKAGE}.egg-info/PKG-INFO", re.compile(r"^Version: (\S+)", re.M)),
    (".git/HEAD", re.compile(r"^ref: refs/heads/releases/v(\S+)", re.M)),
)
_VLLM_TAG = re.compile(r"^ARG VLLM_TAG=v?(\d+(?:\.\d+)+)", re.M)
_RELEASE = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True)
class Release:
    """What a checkout says that it is.

    Attributes:
        version: Of vllm-ascend; ``None`` if no file tells.
        vllm: The vLLM that it is made for; ``None`` if no file tells.
    """

    version: str | None
    vllm: str | None

    def __str__(self) -> str:
        name = f"vllm-ascend {self.version}" if self.version else "a vllm-ascend"
        return f"{name} for vLLM {self.vllm}"


def read_release(root: Path) -> Release:
    """Return what a checkout, or the folder of an installed vllm-ascend, says that it is."""
    version = next(_versions(root), None)
    tag = _first(root / "Dockerfile", _VLLM_TAG)
    # vllm-ascend takes vLLM's numbers: 0.23.0.post1 is for 0.23.0.
    of_version = _RELEASE.match(version or "")
    return Release(version, tag or (of_version[0] if of_version else None))


def _versions(root: Path) -> Iterator[str]:
    for name, pattern in _VERSION_FILES:
        version = _first(root / name, pattern)
        if version:
            yield version


def _first(file: Path, pattern: re.Pattern[str]) -> str | None:
    try:
        found = pattern.search(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found[1] if found else None


def unsupported(root: Path) -> str:
    """Say that a checkout is made for another vLLM; empty if it is not, or if nothing tells.

    Its files tell first: what builds have written stays there when another commit is checked out.
    """
    release: KnownHead | Release | None = head_of(root / PACKAGE)
    release = release or read_release(root)
    if release.vllm is None or takes_overlay(release.vllm):
        return ""
    commits = ", ".join(sorted(head.commit[:8] for head in known_heads() if head.is_supported))
    supported = ", ".join(
        f"vllm-ascend {release.vllm_ascend} for vLLM {release.vllm} "
        f"(branch releases/v{release.vllm_ascend})"
        for release in SUPPORTED
        if release.takes_overlay
    )
    return f"this is {release}; supported here: {supported}, commits {commits}"
