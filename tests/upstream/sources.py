# SPDX-License-Identifier: Apache-2.0
"""Which vllm-ascend the tests run over: a source distribution, or a checkout that is named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import vllm

REPOSITORY = Path(__file__).parents[2]
# As `make upstream-sources` leaves them.
UNPACKED = REPOSITORY / ".upstream"
# vLLM -> vllm-ascend's release for it.
RELEASES = {"0.20.2": "0.20.2rc1", "0.23.0": "0.23.0.post1", "0.30.0": "0.30.0rc2"}
VARIABLE = "VLLM_ASCEND_UPSTREAM"


def unpacked(release: str) -> Path:
    """Return the source distribution of a release of vllm-ascend."""
    root = UNPACKED / release
    whole = (root / ".ready").is_file()
    assert whole, f"no sources of vllm-ascend {release}: run `make upstream-sources`"
    return root


def release_here() -> str:
    """Return vllm-ascend's release for the vLLM that is installed."""
    return RELEASES[vllm.__version__.split("+")[0]]


def checkout_here() -> Path:
    """Return what the tests run over; it is only read."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else unpacked(release_here())


def copy_python(source: Path, copy: Path) -> Path:
    """Copy a checkout's package and unit tests, and return the copy."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("vllm_ascend", "tests/ut"):
        shutil.copytree(source / name, copy / name, ignore=ignored)
    (copy / "tests" / "__init__.py").touch()
    return copy
