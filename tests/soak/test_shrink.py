# SPDX-License-Identifier: Apache-2.0
"""A soak that finds nothing proves nothing: planted bugs are found, and their cases are small."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from tests.e2e.core import test_planted_bugs as bugs
from tests.e2e.core import test_planted_partial_bugs as partial_bugs
from tests.e2e.core.test_planted_bugs import Plant
from tests.soak import episode
from tests.soak.case import Recording
from tests.soak.episode import Result
from tests.soak.hunt import hunt
from tests.soak.shrink import Shrinker
from tests.soak.text import describe_recording

_SEED = 3
_SHRINK_S = 20.0
# Requests, and steps between them where the order of events matters.
_MAX_OPERATIONS = 14

PLANTS: tuple[Plant, ...] = (
    bugs.hash_without_extra_keys,
    bugs.hash_rows_instead_of_tokens,
    bugs.free_windows_too_early,
    bugs.forget_to_reference_hits,
    bugs.keep_keys_over_a_reset,
    bugs.ignore_successors,
    partial_bugs.never_make_the_copies,
)


def shrink(result: Result, seconds: float = _SHRINK_S) -> Recording:
    """The smallest case that was found in a while."""
    assert result.recording is not None and result.failure is not None
    return Shrinker(result.recording, result.failure, seconds).shrink()


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_and_its_case_is_small(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # some episodes have engines that share rows
    plant(monkeypatch)
    found = shrink(hunt(_SEED, count()))
    assert len(found.operations) <= _MAX_OPERATIONS
    found.save(tmp_path / "case.json")
    again = Recording.load(tmp_path / "case.json")
    assert again == found
    failure = episode.replay(again.case, again.operations)
    assert failure is not None and failure.text == found.failure
    monkeypatch.undo()
    assert episode.replay(again.case, again.operations) is None, "it is not the planted bug's"


_REPLAY_WITH_BUG = """
import sys, pytest
from tests.e2e.core import test_planted_bugs as bugs
from tests.soak import pool
bugs.hash_without_extra_keys(pytest.MonkeyPatch())
recording = pool.replay_case(pool.Path(sys.argv[1]))
sys.exit(recording.failure)
"""


def test_a_case_fails_alike_in_another_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bugs.hash_without_extra_keys(monkeypatch)
    found = shrink(hunt(_SEED, count()), seconds=0.5)
    path = tmp_path / "case.json"
    found.save(path)
    text = describe_recording(found, path)
    assert f"python -m tests.soak --case {path}" in text
    assert found.failure.strip().splitlines()[-1] in text
    with_bug = run(sys.executable, "-c", _REPLAY_WITH_BUG, str(path))
    assert with_bug.returncode == 1
    assert found.failure.strip().splitlines()[-1] in with_bug.stderr
    without = run(sys.executable, "-m", "tests.soak", "--case", str(path))
    assert without.returncode == 0
    assert "It does not fail." in without.stdout


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout, with none of the project's variables."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
