# SPDX-License-Identifier: Apache-2.0
"""Files of ours without the overlay's state, as git leaves them: never taken for vllm-ascend's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.ut.overlay.miniature import snapshot
from vllm_ascend.__main__ import app
from vllm_ascend.doctor.findings import Severity
from vllm_ascend.doctor.overlay import check_overlay, overlay_facts
from vllm_ascend.overlay import OverlayError, apply, make_plan, plan, revert, status
from vllm_ascend.overlay.state import STATE_DIRECTORY
from vllm_ascend.releases import SUPPORTED


def git(root: Path, *arguments: str) -> None:
    author = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid")
    subprocess.run(["git", "-C", str(root), *author, *arguments], check=True, capture_output=True)


def run(*arguments: str):
    return CliRunner().invoke(app, ["overlay", *arguments])


@pytest.fixture
def repository(checkout: Path) -> Path:
    """A checkout that git knows, with the overlay in force."""
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "theirs")
    apply(make_plan(checkout))
    return checkout


def clean(root: Path) -> None:
    """Remove all that git does not know: what joined, and the overlay's state."""
    git(root, "clean", "-fdx")


def lose_the_state(root: Path) -> None:
    """Remove what the overlay keeps, and leave all files of ours."""
    shutil.rmtree(root / STATE_DIRECTORY)


def clean_another_version(root: Path) -> None:
    """As :func:`clean`, where the files are not the ones that we would put there."""
    clean(root)
    for path in SUPPORTED[0].replaced:
        file = root / "vllm_ascend" / path
        file.write_text(file.read_text() + "\n# of another day\n")


LOSSES = (clean, lose_the_state, clean_another_version)


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize(
    "command", [("plan",), ("apply",), ("apply", "--allow-unknown"), ("revert",)]
)
def test_nothing_is_done_over_files_of_ours_without_their_state(repository, lose, command):
    lose(repository)
    before = snapshot(repository)
    result = run(*command, str(repository))
    assert result.exit_code == 2
    (line,) = result.output.strip().splitlines()
    assert line.startswith("error: ") and "--allow-unknown" not in line
    assert STATE_DIRECTORY in line and f"git -C {repository} checkout -- " in line
    assert snapshot(repository) == before


@pytest.mark.parametrize("lose", LOSSES)
def test_status_and_doctor_say_what_is_there(repository, lose):
    lose(repository)
    found = status(repository)
    assert found.state == "left-behind"
    assert SUPPORTED[0].replaced <= set(found.left_behind)
    result = run("status", str(repository))
    assert result.exit_code == 1 and f"git -C {repository} checkout -- " in result.output
    (finding,) = check_overlay(overlay_facts(repository, None), {})
    assert finding.severity is Severity.WRONG
    assert f"git -C {repository} checkout -- " in finding.command


@pytest.mark.parametrize("lose", LOSSES)
def test_what_is_said_to_do_brings_vllm_ascend_back(repository, lose):
    lose(repository)
    said = run("apply", str(repository)).output.strip()
    for command in said.partition("files back: ")[2].split(" && "):
        subprocess.run(command, shell=True, check=True, capture_output=True)
    assert status(repository).state == "absent"
    planned = make_plan(repository)
    planned.refuse_misfit(allow_unknown=False)
    assert apply(planned) and revert(repository)


def test_a_file_of_vllm_ascend_is_not_taken_for_ours(checkout):
    """Not one that was changed by hand either."""
    path = checkout / "vllm_ascend" / "worker" / "block_table.py"
    path.write_text("from vllm_ascend import envs\nimport vllm_ascend.platform\n")
    assert status(checkout).state == "absent"


def test_a_revert_that_brings_back_files_of_ours_says_so(repository, monkeypatch):
    """Where they were taken for the originals when the overlay was put there."""
    clean(repository)
    with monkeypatch.context() as patch:
        patch.setattr(plan, "refuse_left_behind", lambda root: None)
        apply(make_plan(repository))
    with pytest.raises(OverlayError, match=r"git -C .* checkout -- "):
        revert(repository)
    assert status(repository).state == "left-behind"
