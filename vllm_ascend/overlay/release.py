# SPDX-License-Identifier: Apache-2.0
"""Which release of vllm-ascend a checkout is, and of which vLLM: by its files, without git."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vllm_ascend.overlay.known_heads import KnownHead, head_of, known_heads
from vllm_ascend.patch.upstream.source import PACKAGE
from vllm_ascend.releases import WITH_OVERLAY, find_release

# Where a version stands: written by builds, then by source distributions, then by git.
_VERSION_FILES = (
    ("{package}/_version.py", re.compile(r"^(?:__version__ = )?version = ['\"]([^'\"]+)", re.M)),
    ("PKG-INFO", re.compile(r"^Version: (\S+)", re.M)),
    ("{package}.egg-info/PKG-INFO", re.compile(r"^Version: (\S+)", re.M)),
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
    version = version_told(PACKAGE, lambda name: _text(root / name))
    tag = _VLLM_TAG.search(_text(root / "Dockerfile") or "")
    # vllm-ascend takes vLLM's numbers: 0.23.0.post1 is for 0.23.0.
    of_version = _RELEASE.match(version or "")
    vllm = tag[1] if tag else of_version[0] if of_version else None
    return Release(version, vllm)


def made_for(root: Path, head: str | None) -> KnownHead | Release:
    """Return which vllm-ascend a checkout is, with or without an overlay.

    Args:
        root: Its directory.
        head: The commit that the overlay was put on, if there is one and it is known.
    """
    known = next((other for other in known_heads() if other.commit == head), None)
    return known or head_of(root / PACKAGE) or read_release(root)


def version_told(package: str, read: Callable[[str], str | None]) -> str | None:
    """Return the version of a package as its files tell it, if they do.

    Args:
        package: Its name in Python.
        read: Path, from the folder that holds the package on -> text; ``None``: no such file.
    """
    for name, pattern in _VERSION_FILES:
        if found := pattern.search(read(name.format(package=package)) or ""):
            return found[1]
    return None


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def unsupported(root: Path) -> str:
    """Say that a checkout is made for another vLLM; empty if it is not, or if nothing tells.

    Its files tell first: what builds have written stays there when another commit is checked out.
    """
    release: KnownHead | Release | None = head_of(root / PACKAGE)
    release = release or read_release(root)
    if release.vllm is None or find_release(release.vllm) in WITH_OVERLAY:
        return ""
    commits = ", ".join(sorted(head.commit[:8] for head in known_heads() if head.is_supported))
    supported = ", ".join(
        f"vllm-ascend {other.vllm_ascend} for vLLM {other.vllm} "
        f"(branch releases/v{other.vllm_ascend})"
        for other in WITH_OVERLAY
    )
    return f"this is {release}; supported here: {supported}, commits {commits}"
