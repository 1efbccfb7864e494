# SPDX-License-Identifier: Apache-2.0
"""Which releases are supported, and which of them is running."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from vllm_ascend.releases.release import Release

# The oldest first. Of vLLM 1.2.3 all stands in v1_2_3.py, in the class Vllm123, and goes with it.
SUPPORTED: tuple[Release, ...] = tuple(
    getattr(importlib.import_module(f"{__package__}.{name}"), f"Vllm{name[1:].replace('_', '')}")()
    for name in sorted(file.stem for file in Path(__file__).parent.glob("v*.py"))
)

# Those over whose vllm-ascend the overlay goes.
WITH_OVERLAY = tuple(release for release in SUPPORTED if release.vllm_ascend)


def find_release(vllm_version: str) -> Release | None:
    """Return the supported release of a version of vLLM; builds differ in their local part only."""
    public = vllm_version.partition("+")[0]
    return next((release for release in SUPPORTED if release.vllm == public), None)


def running_release() -> Release:
    """Return the release that this process runs.

    On a vLLM that is not supported, where nothing of ours is in force, that is the oldest one.
    """
    # Not the installed distribution's version: the CPU build has none of the name vllm.
    return _release_of(importlib.import_module("vllm").__version__)


@cache
def _release_of(vllm_version: str) -> Release:
    return find_release(vllm_version) or SUPPORTED[0]


def why_no_engine(release: Release) -> str:
    """Return why no engine of a release is to cache with a switch on; else nothing."""
    if not release.scheduler_only:
        return ""
    newest = [other.vllm for other in SUPPORTED if not other.scheduler_only][-1]
    return (
        f"of vLLM {release.vllm} only the scheduler is tested with this prefix cache, and no "
        f"engine: use vLLM {newest}"
    )


def describe_supported(conjunction: str = "and") -> str:
    """Return the supported versions of vLLM, for messages."""
    *others, last = (release.vllm for release in SUPPORTED)
    return f"{', '.join(others)} {conjunction} {last}" if others else last
