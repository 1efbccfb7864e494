# SPDX-License-Identifier: Apache-2.0
"""The overlay over a real checkout of vllm-ascend, without an NPU.

Runs where ``VLLM_ASCEND_UPSTREAM`` names a checkout of a head that the overlay knows; the checkout
itself is only read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ut.overlay.miniature import snapshot
from vllm_ascend.overlay import apply, make_plan, revert
from vllm_ascend.prefix_cache_config import child_environment

_NAME = "VLLM_ASCEND_UPSTREAM"
HERE = Path(__file__).parent
# Those of vllm-ascend's own unit tests that need neither an NPU nor Triton.
UPSTREAM_TESTS = (
    "tests/ut/core/test_recompute_scheduler.py",
    "tests/ut/kv_connector/test_mooncake_hybrid_connector.py",
    "tests/ut/test_compressed_prefix_cache.py",
    "tests/ut/worker/test_dsv4_compressed_positions.py",
)
OWN_CHECKS = sorted(path.name for path in HERE.glob("check_*.py"))

pytestmark = pytest.mark.skipif(_NAME not in os.environ, reason=f"{_NAME} names no checkout")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's Python, without its history."""
    source = Path(os.environ[_NAME])
    copy = tmp_path_factory.mktemp("upstream") / "vllm-ascend"
    for name in ("vllm_ascend", "tests/ut"):
        shutil.copytree(
            source / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    return copy


@pytest.fixture(scope="module")
def overlaid(original: Path) -> Path:
    """The copy with the overlay in force."""
    plan = make_plan(original)
    plan.refuse_misfit(allow_unknown=False)
    assert apply(plan)
    return original


def run(checkout: Path, *arguments: str | Path, **environment: str) -> str:
    """Run pytest over a checkout with the stub, and return what it printed."""
    result = subprocess.run(
        [sys.executable, HERE / "stub.py", checkout, *arguments],
        cwd=checkout,
        env=child_environment({"VLLM_LOGGING_LEVEL": "ERROR", **environment}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    return result.stdout


@pytest.mark.parametrize("dsv4_patch", ("0", "1"))
def test_vllm_ascends_own_tests_pass(overlaid, dsv4_patch):
    paths = [path for path in UPSTREAM_TESTS if (overlaid / path).is_file()]
    assert paths  # the older head has fewer
    output = run(overlaid, *paths, VLLM_ASCEND_APPLY_DSV4_PATCH=dsv4_patch)
    assert " passed" in output and "failed" not in output


@pytest.mark.parametrize("check", OWN_CHECKS)
def test_our_checks_pass(overlaid, check):
    output = run(overlaid, HERE / check, VLLM_ASCEND_APPLY_DSV4_PATCH="1")
    assert " passed" in output and "skipped" not in output


def test_revert_leaves_nothing(overlaid):
    copy = overlaid.with_name("again")
    shutil.copytree(overlaid, copy)
    assert revert(copy)
    found = {path: entry[1:] for path, entry in snapshot(copy / "vllm_ascend").items()}
    source = Path(os.environ[_NAME]) / "vllm_ascend"
    expected = {
        path: entry[1:] for path, entry in snapshot(source).items() if not path.endswith(".so")
    }
    assert {path: entry[:1] for path, entry in found.items()} == {
        path: entry[:1] for path, entry in expected.items()
    }
