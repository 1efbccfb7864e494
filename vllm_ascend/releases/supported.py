# SPDX-License-Identifier: Apache-2.0
"""Which releases are supported, and which of them is running."""

from __future__ import annotations

import importlib
from functools import cache

from vllm_ascend.releases.release import Release
from vllm_ascend.releases.v0_20_2 import Vllm0202
from vllm_ascend.releases.v0_23_0 import Vllm0230
from vllm_ascend.releases.v0_30_0 import Vllm0300

SUPPORTED: tuple[Release, ...] = (Vllm0202(), Vllm0230(), Vllm0300())


def find_release(vllm_version: str) -> Release | None:
    """Return the supported release of a version of vLLM; builds differ in their local part only."""
    public = vllm_version.partition("+")[0]
    return next((release for release in SUPPORTED if release.vllm == public), None)


def takes_overlay(vllm_version: str) -> bool:
    """Whether the overlay fits a checkout of vllm-ascend that is made for a version of vLLM."""
    release = find_release(vllm_version)
    return release is not None and release.takes_overlay


def running_release() -> Release:
    """Return the release that this process runs.

    On a vLLM that is not supported, where nothing of ours is in force, that is the oldest one.
    """
    # Not the installed distribution's version: the CPU build has none of the name vllm.
    return _release_of(importlib.import_module("vllm").__version__)


@cache
def _release_of(vllm_version: str) -> Release:
    return find_release(vllm_version) or SUPPORTED[0]


def describe_supported(conjunction: str = "and") -> str:
    """Return the supported versions of vLLM, for messages."""
    *others, last = (release.vllm for release in SUPPORTED)
    return f"{', '.join(others)} {conjunction} {last}"
