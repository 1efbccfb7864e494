# SPDX-License-Identifier: Apache-2.0
"""``overlay plan`` over vllm-ascend 0.30.0rc2 as its repository has changed it since, in ten ways.

It says by function what fits and what does not; nothing of it is run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.upstream.sources import checkout_here, release_here
from vllm_ascend.overlay import make_plan
from vllm_ascend.overlay.plan import OverlayPlan, describe_refusal
from vllm_ascend.overlay.transaction import OverlayError

pytestmark = pytest.mark.skipif(release_here() != "0.30.0rc2", reason="the newest is what changes")

COMPRESSOR = "models/deepseek_v4/compressor.py"
RUNNER = "worker/model_runner_v1.py"
CONNECTOR = "distributed/kv_transfer/kv_p2p/mooncake_hybrid_connector.py"
COORDINATOR = "patch/platform/patch_kv_cache_coordinator.py"
Change = Callable[[Path], None]
FITS, UNKNOWN, NEVER = "", "would not: compare these first", "with --allow-unknown too"


def replaced(path: str, old: str, new: str) -> Change:
    """Return what puts other words in place of some of a file."""

    def change(package: Path) -> None:
        text = (package / path).read_text()
        assert old in text, f"{path} has no {old!r}"
        (package / path).write_text(text.replace(old, new, 1))

    return change


def added(path: str, text: str) -> Change:
    """Return what adds to a file, or makes it."""

    def change(package: Path) -> None:
        with (package / path).open("a") as file:
            file.write(text)

    return change


def removed(path: str) -> Change:
    """Return what removes a file."""
    return lambda package: (package / path).unlink()


CHANGES = {
    "the state is a ring": (
        replaced(
            COMPRESSOR, "return AscendSlidingWindowMLASpec(", "return AscendCircularBufferSpec("
        ),
        NEVER,
        "get_kv_cache_spec returns AscendCircularBufferSpec), where no hit finds it",
    ),
    "the runner has the state": (
        replaced(COMPRESSOR, "class AscendCompressorStateCache(", "class AscendStateRing("),
        NEVER,
        f"{COMPRESSOR} has no AscendCompressorStateCache.get_kv_cache_spec",
    ),
    "another window of the state": (
        replaced(COMPRESSOR, "sliding_window=self.sliding_window,", "sliding_window=32,"),
        UNKNOWN,
        f"{COMPRESSOR}: AscendCompressorStateCache.get_kv_cache_spec",
    ),
    "a coordinator of checkpoints": (
        replaced(COORDINATOR, "def get_kv_cache_coordinator", "def get_checkpoint_coordinator"),
        UNKNOWN,
        f"{COORDINATOR}: get_kv_cache_coordinator",
    ),
    "KV transfer, version 2": (
        replaced(CONNECTOR, "def _transfer_kv_cache(", "def _transfer_kv_cache_v2("),
        NEVER,
        "KVCacheRecvingThread._transfer_kv_cache",
    ),
    "the connector has moved": (removed(CONNECTOR), NEVER, "mooncake_hybrid_connector"),
    "copies of blocks have another name": (
        replaced("worker/utils.py", "def copy_kv_cache_blocks_inplace(", "def copy_kv_blocks("),
        UNKNOWN,
        "worker/utils.py: copy_kv_cache_blocks_inplace",
    ),
    "our patches' installer is not imported": (
        removed("patch/platform/__init__.py"),
        NEVER,
        "patch/platform/__init__.py does not exist",
    ),
    "something else of the runner": (added(RUNNER, "\n\ndef note() -> None: ...\n"), FITS, ""),
    "a module of checkpoints beside it": (
        added("core/compressor_checkpoint.py", "CHECKPOINTS = 16\n"),
        FITS,
        "",
    ),
}


def plan_of(package: Path) -> OverlayPlan:
    """Plan over a copy of the package."""
    return make_plan(package.parent)


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    """What the overlay reads of a checkout."""
    root = tmp_path_factory.mktemp("checkout")
    python = shutil.ignore_patterns("*.so", "*.pyc", "_cann_ops_custom")
    shutil.copytree(checkout_here() / "vllm_ascend", root / "vllm_ascend", ignore=python)
    shutil.copy(checkout_here() / "PKG-INFO", root)
    return root / "vllm_ascend"


@pytest.mark.parametrize("name", CHANGES)
def test_what_fits_and_what_does_not_is_told_by_function(name: str, copied: Path):
    change, expected, told = CHANGES[name]
    before = {path: path.read_bytes() for path in copied.rglob("*.py")}
    try:
        change(copied)
        planned = plan_of(copied)
        checkout = planned.checkout
        assert checkout.head is None and checkout.changed
        refusal = describe_refusal(checkout)
        assert expected in refusal and bool(expected) is bool(refusal)
        assert told in "; ".join((*checkout.problems, *checkout.inside))
        for allow_unknown in (False, True):
            if expected == NEVER or (expected == UNKNOWN and not allow_unknown):
                with pytest.raises(OverlayError):
                    planned.refuse_misfit(allow_unknown=allow_unknown)
            else:
                planned.refuse_misfit(allow_unknown=allow_unknown)
    finally:
        for path in set(copied.rglob("*.py")) - before.keys():
            path.unlink()
        for path, content in before.items():
            path.write_bytes(content)
