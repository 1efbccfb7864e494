# SPDX-License-Identifier: Apache-2.0
"""One run of vLLM's own tests: ``python child.py TASK``, in the folder of their sources.

``TASK`` is a JSON file with the files to run, the files and tests to leave out, and whether the
patches are installed first. What became of every test is written in its place. Two packages are
called ``tests``: here it is vLLM's.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_OPTIONS = (
    *("-q", "-p", "no:cacheprovider", "-p", "no:warnings", "-c", os.devnull, "--rootdir=."),
    *("-p", "pytest_asyncio", "-o", "asyncio_mode=auto"),
    *("--noconftest", "--continue-on-collection-errors", "--tb=native"),
    # A test that hangs ends the run, with a traceback.
    *("-o", "faulthandler_timeout=300", "-o", "faulthandler_exit_on_timeout=true"),
)
# Whose fixtures the tests use. Their own cleaning up between tests would take most of the time.
_CONFTESTS = (
    "tests.v1.kv_connector.unit.conftest",
    "tests.v1.kv_connector.unit.offloading_connector.conftest",
)
_FIXTURES = (
    "caplog_vllm",
    "default_vllm_config",
    "dist_init",
    "num_gpus_available",
    "temporary_enable_log_propagate",
    "vllm_runner",
    "workspace_init",
)
# What a test is if its parts (setup, body, teardown) do not agree: the first that any of them is.
_OUTCOMES = ("failed", "skipped", "passed")


class Outcomes:
    """A plugin of pytest that notes what became of every test, and fixes the seeds."""

    def __init__(self) -> None:
        self.tests: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.reasons: dict[str, str] = {}

    def pytest_runtest_setup(self, item: Any) -> None:
        """Let the tests that draw random numbers draw the same ones in every run."""
        random.seed(0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note the outcome of a test's setup, body or teardown."""
        file = report.nodeid.partition("::")[0]
        self.seconds[file] = self.seconds.get(file, 0.0) + report.duration
        if report.when == "call" or report.outcome != "passed":
            both = (report.outcome, self.tests.get(report.nodeid, report.outcome))
            self.tests[report.nodeid] = min(both, key=_OUTCOMES.index)
        if report.outcome == "failed":
            self.reasons[report.nodeid] = str(report.longrepr)[-600:]

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that cannot be collected as a test that fails."""
        if report.failed:
            self.tests[report.nodeid] = "failed"
            self.reasons[report.nodeid] = str(report.longrepr)[-600:]


def _fixtures() -> list[ModuleType]:
    """Return modules with the fixtures of vLLM's that are used, to be registered as plugins."""
    theirs = importlib.import_module("tests.conftest")
    chosen = ModuleType("fixtures_of_vllm")
    for name in _FIXTURES:
        if hasattr(theirs, name):
            setattr(chosen, name, getattr(theirs, name))
    files = {name: Path(*name.split(".")).with_suffix(".py") for name in _CONFTESTS}
    return [chosen, *(importlib.import_module(n) for n, file in files.items() if file.exists())]


def main(task: Path) -> int:
    """Run a task; return pytest's exit code."""
    told = json.loads(task.read_text(encoding="utf-8"))
    sys.path[0] = str(Path.cwd())
    if told["patched"]:
        import vllm_ascend

        vllm_ascend.register()
    outcomes = Outcomes()
    left_out = [
        f"--deselect={name}" if "::" in name else f"--ignore={name}" for name in told["left_out"]
    ]
    exit_code = pytest.main([*_OPTIONS, *left_out, *told["files"]], [outcomes, *_fixtures()])
    task.write_text(json.dumps(vars(outcomes)), encoding="utf-8")
    return int(exit_code)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
