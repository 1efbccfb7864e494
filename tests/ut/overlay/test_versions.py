# SPDX-License-Identifier: Apache-2.0
"""An overlay of another version of ours, and changes of others that an overlay covers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.ut.overlay.miniature import snapshot
from vllm_ascend.__main__ import app
from vllm_ascend.deployment import own_package
from vllm_ascend.doctor.findings import Severity
from vllm_ascend.doctor.overlay import check_overlay, overlay_facts
from vllm_ascend.overlay import OverlayError, apply, make_plan, revert, status

CHANGED = "core/plan/scheduler_facts.py"
REPLACED = "worker/block_table.py"


def run(*arguments: str):
    # Narrower than most paths.
    return CliRunner().invoke(app, ["overlay", *arguments], env={"COLUMNS": "40"})


@pytest.fixture(scope="module")
def older_package(tmp_path_factory) -> Path:
    """This project as it was: one file another one, and one that was not there yet."""
    folder = tmp_path_factory.mktemp("older") / "vllm_ascend"
    shutil.copytree(own_package(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / CHANGED).write_text("# as it was\n")
    (folder / "deployment.py").unlink()
    return folder


@pytest.fixture
def older(checkout: Path, older_package: Path) -> Path:
    """A checkout with the overlay of an older version of ours."""
    planned = make_plan(checkout)
    files = tuple(file for file in planned.files if file.path != "deployment.py")
    apply(replace(planned, source=older_package, files=files))
    return checkout


def test_status_says_that_the_overlay_is_of_another_version(older):
    found = status(older)
    assert (found.state, found.outdated) == ("outdated", (CHANGED, "deployment.py"))
    result = run("status", str(older))
    assert result.exit_code == 1
    assert "another version of this project" in result.output
    assert CHANGED in result.output and "deployment.py" in result.output
    told = json.loads(run("status", "--json", str(older)).output)
    assert (told["state"], told["outdated"]) == ("outdated", [CHANGED, "deployment.py"])


def test_the_doctor_says_that_the_overlay_is_of_another_version(older):
    facts = overlay_facts(older, None)
    assert "another version of this project" in facts.text
    (finding,) = check_overlay(facts, {})
    assert finding.severity is Severity.WARNING
    assert f"overlay revert {older}" in finding.command


def test_the_same_version_is_not_outdated(checkout):
    apply(make_plan(checkout))
    assert (status(checkout).state, status(checkout).outdated) == ("applied", ())
    assert not list(check_overlay(overlay_facts(checkout, None), {}))


def test_another_version_is_reverted_before_this_one_is_applied(older):
    with pytest.raises(OverlayError, match=r"overlay of another version: .*overlay revert"):
        apply(make_plan(older))
    assert revert(older)
    assert apply(make_plan(older))
    assert status(older).state == "applied"


@pytest.fixture
def changed(checkout: Path) -> Path:
    """A checkout with a change of somebody's in a file that ours takes the place of."""
    file = checkout / "vllm_ascend" / REPLACED
    file.write_text(file.read_text() + "# mine\n")
    return checkout


def test_that_a_change_would_be_out_of_force_is_told_beforehand(changed):
    for command in (("plan",), ("apply",)):
        said = run(*command, str(changed)).output
        assert f"{REPLACED}" in said and "out of force" in said, command
    told = json.loads(run("plan", "--json", str(changed)).output)
    assert told["checkout"]["out_of_force"] == [REPLACED]


def test_that_a_change_is_out_of_force_is_told_as_long_as_it_is(changed):
    before = snapshot(changed)
    said = run("apply", "--allow-unknown", str(changed)).output
    assert said.count("Changes in these files are out of force") == 1 and REPLACED in said
    assert status(changed).out_of_force == (REPLACED,)
    assert "Changes in these files are out of force" in run("status", str(changed)).output
    (finding,) = check_overlay(overlay_facts(changed, None), {})
    assert finding.severity is Severity.WARNING and REPLACED in finding.text
    assert revert(changed)
    assert snapshot(changed) == before


def test_other_changes_stay_in_force_and_are_not_told_so(checkout):
    file = checkout / "vllm_ascend" / "models" / "deepseek_v4.py"
    file.write_text(file.read_text() + "# mine\n")
    assert "out of force" not in run("apply", "--allow-unknown", str(checkout)).output
    assert status(checkout).out_of_force == ()


def test_what_one_copies_is_never_broken(changed):
    """Neither on a terminal of 40 columns nor in a pipe: paths, targets and commands are whole."""
    planned = make_plan(changed)
    lines = run("plan", str(changed)).output.splitlines()
    words = {word for line in lines for word in line.split()}
    assert {file.path for file in planned.files} <= words
    assert {patch.target for patch in planned.patches} <= words
    reasons = " ".join(" ".join(lines).split())
    assert all(" ".join(file.why.split()) in reasons for file in planned.files)
