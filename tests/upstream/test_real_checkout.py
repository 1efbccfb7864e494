# SPDX-License-Identifier: Apache-2.0
"""The overlay over a real vllm-ascend, without an NPU: our own checks (``check_*.py``)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.upstream.forks import Answer, run_groups
from tests.upstream.sources import checkout_here, release_here
from tests.ut.overlay.miniature import snapshot
from vllm_ascend.overlay import revert
from vllm_ascend.prefix_cache_config import VARIABLES, child_environment

# Checks of what only one release of vllm-ascend has.
OF_RELEASE = {
    "0.20.2rc1": {"check_block_sizes.py"},
    "0.23.0.post1": {
        "check_doctor.py",
        "check_own_block_sizes.py",
        "check_steps_in_flight.py",
    },
    "0.30.0rc2": {
        "check_doctor.py",
        "check_runner_copies.py",
        "check_token_blocks.py",
    },
}
# vllm-ascend 0.30.0rc2 makes copies and slots itself, and has no scheduler of dynamic batches. Its
# blocks count tokens, those of the checks of Mooncake count rows: whole runs of its worker show the
# connector (check_whole_runs_of_mooncake.py).
_NOT_OF_RELEASE = {
    "0.30.0rc2": {
        "check_dynamic_batch.py",
        "check_draft_slots.py",
        "check_late_pulls.py",
        "check_model_runner.py",
        "check_mooncake.py",
    }
}
_OF_OTHERS = (set().union(*OF_RELEASE.values()) - OF_RELEASE[release_here()]) | _NOT_OF_RELEASE.get(
    release_here(), set()
)
OWN_CHECKS = [
    path for path in sorted(Path(__file__).parent.glob("check_*.py")) if path.name not in _OF_OTHERS
]


@pytest.fixture(scope="module")
def answers(overlaid: Path) -> dict[str, Answer]:
    """What became of all checks, by the names of their files."""
    environment = child_environment(
        {
            "PYTEST_ADDOPTS": "--noconftest",
            "VLLM_ASCEND_APPLY_DSV4_PATCH": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
    )
    groups = {path.name: [str(path)] for path in OWN_CHECKS}
    patches = ("vllm_ascend.patch.platform", "vllm_ascend.patch.worker")
    return run_groups(overlaid, groups, environment, imported=patches)


@pytest.mark.parametrize("check", [path.name for path in OWN_CHECKS])
def test_our_checks_pass(answers, check):
    answer = answers[check]
    assert answer.exit_code == 0, answer.output[-8000:]
    assert answer.tests and answer.passed() == set(answer.tests)


_SAYS_WHAT_IS_SET = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import stub
stub.install(Path(sys.argv[1]))
import vllm_ascend.patch.platform
import vllm_ascend.envs
for read in vllm_ascend.envs.env_variables.values():
    read()
print(sorted(set(sys.argv[3:]) & set(os.environ)))
"""


def test_a_variable_that_is_blank_counts_as_unset(overlaid):
    """vllm-ascend 0.20.2 reads one of ours itself, right behind our first module, as a number."""
    names = [variable.name for variable in VARIABLES]
    environment = child_environment({**dict.fromkeys(names, ""), "VLLM_LOGGING_LEVEL": "ERROR"})
    told = subprocess.run(
        [sys.executable, "-c", _SAYS_WHAT_IS_SET, overlaid, Path(__file__).parent, *names],
        cwd=overlaid,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-3000:]
    assert told.stdout.splitlines()[-1] == "[]"


def test_revert_leaves_nothing(overlaid, tmp_path):
    copy = tmp_path / "again"
    shutil.copytree(overlaid, copy)
    assert revert(copy)
    assert content(copy) == content(checkout_here())


def content(root: Path) -> dict[str, tuple]:
    """Return the folders of a package and its files with their bytes; nothing compiled."""
    entries = snapshot(root / "vllm_ascend").items()
    return {path: entry[1:2] for path, entry in entries if not path.endswith(".so")}
