# SPDX-License-Identifier: Apache-2.0
"""Which of this package's files go into a checkout, and in whose place."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vllm_ascend.releases import Release

# Why ours take the place of modules of vllm-ascend; in which releases, those say.
_WHY_REPLACED = {
    "core/single_type_kv_cache_manager.py": (
        "Managers that hash what a block covers, keep what can be hit, and know retention."
    ),
    "patch/platform/patch_kv_cache_coordinator.py": (
        "The coordinator: exact look-ups at every granule instead of every 16,384 tokens."
    ),
    "patch/platform/patch_kv_cache_interface.py": (
        "Specs that keep every field when merged. The first module imported: installs the patches."
    ),
    "patch/platform/patch_kv_cache_utils.py": (
        "Groups, tensors and block sizes in tokens, at 32, 64 and 128 rows per block."
    ),
    "patch/worker/patch_deepseek_compressor.py": (
        "DeepSeek-V4's cache layers in blocks of the configured size."
    ),
    "worker/block_table.py": (
        "Tables no longer than the compressed rows need, of which only changes are uploaded."
    ),
}


@dataclass(frozen=True)
class OverlayFile:
    """One file of ours.

    Attributes:
        path: Relative to the package directory, with slashes.
        replaces: It takes the place of a module of vllm-ascend.
        why: The reason, in a sentence.
        appended: Of a module of vllm-ascend that stays, the lines that are put behind it.
    """

    path: str
    replaces: bool
    why: str
    appended: str = ""

    def content(self, source: Path, original: Path) -> bytes:
        """Return what is put there.

        Args:
            source: Our package directory.
            original: vllm-ascend's file of this path.
        """
        if self.appended:
            return original.read_bytes() + self.appended.encode()
        return (source / self.path).read_bytes()


def overlay_files(
    source: Path, package: Path, release: Release, added: frozenset[str] = frozenset()
) -> list[OverlayFile]:
    """Return the files of ours that go into a checkout, sorted by path.

    ``__init__.py`` files that vllm-ascend has stay its own.

    Args:
        source: Our package directory.
        package: The checkout's.
        release: Which it is.
        added: Files that an overlay in force has put there, and vllm-ascend does not have.
    """
    files = [
        OverlayFile(path, True, why, f"\n{line}  # noqa\n")
        for path, (line, why) in release.extended.items()
    ]
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source).as_posix()
        if not path.is_file() or _is_left_out(relative) or relative in release.left_out:
            continue
        if relative in release.replaced:
            files.append(OverlayFile(relative, True, _WHY_REPLACED[relative]))
        elif path.name != "__init__.py" or relative in added or not (package / relative).exists():
            files.append(OverlayFile(relative, False, _purpose(path)))
    return sorted(files, key=lambda file: file.path)


def _is_left_out(relative: str) -> bool:
    return "__pycache__" in relative or relative.endswith(".pyc")


@cache
def _purpose(path: Path) -> str:
    """Return the first sentence of a module's docstring; our own files stay as they are."""
    if path.suffix != ".py":
        return "Data of the module beside it."
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def sha256(path: Path) -> str:
    """Return the digest of a file's content."""
    return digest(path.read_bytes())


def digest(content: bytes) -> str:
    """Return the digest of what a file holds."""
    return hashlib.sha256(content).hexdigest()
