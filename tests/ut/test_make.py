# SPDX-License-Identifier: Apache-2.0
"""The Makefile as a newcomer meets it: its list of targets, and what the fast tests need."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.vllm_own.runs import CARRIERS

REPOSITORY = Path(__file__).parents[2]
# What a test file says, or asks for, that needs more than `make setup`.
_NEEDS_MORE = re.compile(r"run `make (?:other-vllm|upstream-sources)`|: make other-vllm")


def make(*arguments: str) -> str:
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_help_says_of_every_target_what_it_is_for_and_how_long_it_takes() -> None:
    lines = make("help").splitlines()
    assert len(lines) > 20
    for line in lines:
        assert re.fullmatch(
            r"  make [a-z-]+ +[A-Z].* \([^()]*(second|minute|hour)[^()]*\)\.", line
        ), line


def test_every_target_for_people_is_listed() -> None:
    text = (REPOSITORY / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)$", text, re.M)
    listed = set(re.findall(r"^  make ([a-z-]+)", make("help"), re.M))
    assert set(phony.replace("\\", "").split()) - listed == {"free-port"}


@pytest.mark.parametrize("vllm", ["", "0.23.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"])
def test_every_environment_gets_its_own_requirements(vllm: str) -> None:
    """As in a fresh clone, whatever release is asked for first."""
    goal = "replay" if vllm in CARRIERS else "serve-real"
    everything = make(
        "--dry-run", "--always-make", goal, "other-vllm", f"VLLM={vllm}", "UV=uv"
    ).replace("\\\n", " ")
    filled = re.findall(r"^uv pip sync .*--python (\S+)/bin/python (\S+)$", everything, re.M)
    places = {
        requirements: folder
        for folder, requirements in filled
        if requirements.startswith(("requirements/dev", "requirements/engine"))
    }
    expected = {"requirements/dev.txt": ".venv"}
    engine = CARRIERS.get(vllm, vllm)
    if engine in ("0.30.0", "0.31.0", "0.32.0"):
        expected[f"requirements/engine/{engine}/requirements.txt"] = f".venv-engine/{engine}"
    assert places == expected


@pytest.mark.parametrize("goal", ["serve", "serve-real", "test-servers", "test-real"])
def test_where_only_the_scheduler_runs_no_server_is_started(goal: str) -> None:
    for vllm, engine in CARRIERS.items():
        with pytest.raises(subprocess.CalledProcessError) as ended:
            make("--dry-run", goal, f"VLLM={vllm}")
        assert f"vLLM {vllm} has no build for the CPU" in ended.value.stderr
        assert f"use VLLM={engine}." in ended.value.stderr


def test_the_fast_tests_need_nothing_but_the_environment() -> None:
    command = make("--dry-run", "test-fast")
    assert ".venv-vllm" not in command and ".upstream" not in command
    ignored = [REPOSITORY / path for path in re.findall(r"--ignore=(\S+)", command)]
    assert ignored and all(path.exists() for path in ignored)
    for test in (REPOSITORY / "tests" / "ut").rglob("test_*.py"):
        if test != Path(__file__) and _NEEDS_MORE.search(test.read_text(encoding="utf-8")):
            assert any(test.is_relative_to(path) for path in ignored), test
