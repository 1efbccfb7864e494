# SPDX-License-Identifier: Apache-2.0
"""The releases that the cure is for: all that differs between them stands in this package.

One module per pair of vLLM and vllm-ascend says, as data, which patch targets it has and with which
source digests, and adapts names and signatures. None knows another. Nobody else asks which release
is running.
"""

from vllm_ascend.releases.release import Release
from vllm_ascend.releases.supported import (
    SUPPORTED,
    WITH_OVERLAY,
    describe_supported,
    find_release,
    running_release,
    why_no_engine,
)

__all__ = [
    "SUPPORTED",
    "WITH_OVERLAY",
    "Release",
    "describe_supported",
    "find_release",
    "running_release",
    "why_no_engine",
]
