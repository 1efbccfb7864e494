# SPDX-License-Identifier: Apache-2.0
"""Commits of vllm-ascend that are known by the content of their files: a file of data for each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from vllm_ascend.overlay.files import sha256
from vllm_ascend.releases import find_release

DATA = Path(__file__).with_name("heads")
# Written by builds; no two checkouts agree on them.
_GENERATED = ("_build_info.py", "_version.py")


@dataclass(frozen=True)
class KnownHead:
    """A commit of vllm-ascend.

    Attributes:
        commit: Its id, which the one that made its source distribution may have shortened.
        version: Of vllm-ascend.
        vllm: The release of vLLM that it is made for.
        files: Python file of the package -> digest of its content.
        functions: See :func:`~vllm_ascend.overlay.functions.rested_on`; empty if it was not
            recorded.
    """

    commit: str
    version: str
    vllm: str
    files: Mapping[str, str]
    functions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def is_supported(self) -> bool:
        """Whether the overlay can be put over it."""
        return find_release(self.vllm) is not None

    def __str__(self) -> str:
        return f"vllm-ascend {self.version} (commit {self.commit[:8]}) for vLLM {self.vllm}"


@cache
def known_heads() -> tuple[KnownHead, ...]:
    """Return every commit that is known, supported or not."""
    files = sorted(DATA.glob("*.json"))
    return tuple(KnownHead(**json.loads(file.read_text(encoding="utf-8"))) for file in files)


def head_of(package: Path) -> KnownHead | None:
    """Return the commit that has the files of a package, which has no overlay; ``None``: none."""
    found = dict(digest_files(package))
    return next((head for head in known_heads() if head.files == found), None)


def digest_files(package: Path) -> Iterator[tuple[str, str]]:
    """Yield every Python file of a package that is not generated, with its short digest."""
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package).as_posix()
        if relative not in _GENERATED and not path.is_symlink():
            yield relative, sha256(path)[:16]
