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
# Another checkout for the vLLM that is installed, such as the one inside an image of vllm-ascend.
VARIABLE = "VLLM_ASCEND_UPSTREAM"
# What tests and servers read of one.
_READ = ("vllm_ascend/platform.py", "csrc/torch_binding.cpp", "setup.py", "tests/ut")


def unpacked(release: str) -> Path:
    """Return the source distribution of a release of vllm-ascend."""
    root = UNPACKED / release
    whole = (root / ".ready").is_file()
    assert whole, f"no sources of vllm-ascend {release}: run `make upstream-sources`"
    return root


def release_here() -> str:
    """Return vllm-ascend's release for the vLLM that is installed."""
    return RELEASES[vllm.__version__.split("+")[0]]


def named_checkout() -> Path | None:
    """Return the checkout that :data:`VARIABLE` names; ``None`` if it names none.

    Raises:
        ValueError: The folder lacks something that is read of a checkout, is overlaid, or is made
            for another vLLM than the one that is installed.
    """
    # Checks import this module over a plain checkout, which has no overlay to import.
    from vllm_ascend.overlay.known_heads import head_of
    from vllm_ascend.overlay.release import read_release
    from vllm_ascend.overlay.state import STATE_DIRECTORY

    named = os.environ.get(VARIABLE)
    if not named:
        return None
    root = Path(named).resolve()
    for name in _READ:
        if not (root / name).exists():
            raise ValueError(f"{VARIABLE}={named} is not a checkout of vllm-ascend: no {name}")
    if (root / STATE_DIRECTORY).exists():
        raise ValueError(f"{VARIABLE}={named} is overlaid: name a copy from which it is reverted")
    made_for = head_of(root / "vllm_ascend") or read_release(root)
    here = vllm.__version__.split("+")[0]
    if made_for.vllm not in (None, here):
        raise ValueError(f"{VARIABLE}={named} is {made_for}; vLLM {here} is installed")
    return root


def checkout_here() -> Path:
    """Return what the tests run over; it is only read.

    Raises:
        ValueError: See :func:`named_checkout`.
    """
    return named_checkout() or unpacked(release_here())


def put_overlay(checkout: Path) -> Path:
    """Put the overlay over a checkout, and return that.

    Raises:
        OverlayError: It does not fit.
    """
    # See above: lazily.
    from vllm_ascend.overlay import apply, make_plan

    plan = make_plan(checkout)
    plan.refuse_misfit(allow_unknown=False)
    assert apply(plan)
    return checkout


def copy_python(source: Path, copy: Path) -> Path:
    """Copy a checkout's package and unit tests, and return the copy."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("vllm_ascend", "tests/ut"):
        shutil.copytree(source / name, copy / name, ignore=ignored)
    (copy / "tests" / "__init__.py").touch()
    return copy
