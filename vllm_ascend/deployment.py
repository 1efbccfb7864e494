# SPDX-License-Identifier: Apache-2.0
"""What this package is, and where it runs: beside vLLM, or over a checkout of vllm-ascend."""

from __future__ import annotations

from functools import cache
from pathlib import Path

# Of this project; pyproject.toml says the same.
VERSION = "0.1.0"
# The vLLM whose functions the patches were written for.
SUPPORTED_VLLM = "0.20.2"

# A module of vllm-ascend that this project has none of: the NPU platform.
_MARK = "platform.py"


def own_package() -> Path:
    """Return the directory of the package that this module is part of."""
    return Path(__file__).resolve().parent


def is_checkout(package: Path) -> bool:
    """Whether a package directory is vllm-ascend's, with or without our modules in it."""
    return (package / _MARK).is_file()


@cache
def is_over_checkout() -> bool:
    """Whether this package is part of a checkout of vllm-ascend."""
    return is_checkout(own_package())
