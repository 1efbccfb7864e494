# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's own unit tests: what passes over vllm-ascend as it is passes with the overlay."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.upstream.forks import Answer, run_groups
from tests.upstream.sources import release_here
from vllm_ascend.prefix_cache_config import child_environment


@dataclass(frozen=True)
class Theirs:
    """Those of a release's unit tests that concern what the overlay replaces or patches.

    Attributes:
        files: Patterns below ``tests/ut``.
        without: Patterns of those among them that need an NPU, or wait for a peer without end.
        switched_off: Folders of them that are run with DeepSeek-V4's layout switched off as well.
        least: How many of their tests pass without an NPU, at least: fewer prove too little. By
            whether the layout is switched on.
    """

    files: tuple[str, ...]
    without: tuple[str, ...]
    switched_off: tuple[str, ...]
    least: dict[str, int]


THEIRS = {
    "0.20.2rc1": Theirs(
        files=(
            "_310p/test_block_table_310p.py",
            "_310p/test_model_runner_310p.py",
            "attention/test_*.py",
            "core/test_*.py",
            "distributed/ascend_store/test_*.py",
            "distributed/mooncake/test_*.py",
            "kv_connector/test_*.py",
            "patch/**/test_*.py",
            "spec_decode/test_*.py",
            "test_compressed_prefix_cache.py",
            "test_platform.py",
            "test_utils.py",
            "worker/test_*.py",
        ),
        without=("*_precision.py", "*_with_device.py", "test_mooncake_connector.py"),
        switched_off=("tests/ut", "tests/ut/core", "tests/ut/worker"),
        least={"1": 620, "0": 110},
    ),
    "0.23.0.post1": Theirs(
        files=(
            "_310p/test_block_table_310p.py",
            "_310p/test_model_runner_310p.py",
            "core/test_*.py",
            "distributed/ascend_store/test_*.py",
            "distributed/mooncake/test_*.py",
            "kv_offload/test_mooncake_hybrid_connector.py",
            "patch/platform/test_*.py",
            "test_compressed_prefix_cache.py",
            "test_platform.py",
            "test_utils.py",
            "worker/**/test_*.py",
        ),
        without=(
            "*_with_device.py",
            "test_prefix_cache_cp_patches.py",  # private functions of the modules replaced
        ),
        switched_off=(),  # vllm-ascend has no such switch any more
        least={"1": 620},
    ),
    "0.30.0rc2": Theirs(
        files=(
            "core/test_*.py",
            "patch/platform/test_*.py",
            "test_platform.py",
            "test_utils.py",
            "worker/**/test_*.py",
        ),
        without=("*_with_device.py",),
        switched_off=(),
        least={"1": 600},
    ),
}


def groups_of(theirs: Theirs, checkout: Path) -> dict[str, list[str]]:
    """Return the files by folder."""
    folder = checkout / "tests" / "ut"
    found = {path for pattern in theirs.files for path in folder.glob(pattern)}
    found -= {path for pattern in theirs.without for path in folder.rglob(pattern)}
    groups: dict[str, list[str]] = {}
    for path in sorted(found):
        file = path.relative_to(checkout)
        groups.setdefault(str(file.parent), []).append(str(file))
    return groups


@pytest.fixture(scope="module", params=THEIRS[release_here()].least)
def both(
    request: pytest.FixtureRequest, plain: Path, overlaid: Path
) -> tuple[str, dict[str, Answer], dict[str, Answer]]:
    """The switch, and what became of their tests without the overlay and with it."""
    switch = request.param
    theirs = THEIRS[release_here()]
    groups = groups_of(theirs, plain)
    if switch == "0":
        groups = {name: groups[name] for name in theirs.switched_off}
    environment = child_environment(
        {"VLLM_ASCEND_APPLY_DSV4_PATCH": switch, "VLLM_LOGGING_LEVEL": "ERROR"}
    )

    def run(tree: Path) -> dict[str, Answer]:
        return run_groups(tree, groups, environment, imported=["tests.ut.conftest"])

    with ThreadPoolExecutor() as threads:
        before, after = threads.map(run, (plain, overlaid))
    return switch, before, after


def test_enough_of_them_pass_at_all(both):
    switch, before, after = both
    for answers in (before, after):
        for group, answer in answers.items():
            assert answer.exit_code in (0, 1), f"{group} broke off:\n{answer.output[-6000:]}"
    passed = sum(len(answer.passed()) for answer in before.values())
    assert passed >= THEIRS[release_here()].least[switch]


def test_what_passes_without_the_overlay_passes_with_it(both):
    _, before, after = both
    lost = {
        group: f"{sorted(missing)}\n{after[group].output[-6000:]}"
        for group, answer in before.items()
        if (missing := answer.passed() - after[group].passed())
    }
    assert not lost, "\n".join(f"{group}: {text}" for group, text in lost.items())
