# SPDX-License-Identifier: Apache-2.0
"""Runs groups of test files over a checkout of vllm-ascend, each group in a process of its own.

The processes are forks of one that has imported vLLM and the patches, which takes longer than most
tests do. A group cannot disturb the next one: vllm-ascend's tests put mocks into ``sys.modules``.

As a program: ``python forks.py CHECKOUT TASK``. ``TASK`` is a JSON file with what to import first
and the groups; an :class:`Answer` for each is written in its place.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

_OPTIONS = (
    *("-q", "-p", "no:cacheprovider", "-c", os.devnull),
    *("-o", "faulthandler_exit_on_timeout=true"),
)
# What a test is if its parts (setup, subtests, ...) do not agree: the first that any of them is.
_OUTCOMES = ("failed", "skipped", "passed")


@dataclass
class Answer:
    """What became of a group.

    Attributes:
        exit_code: pytest's: 0 if all passed, 1 if some failed, another if it broke off.
        output: What was printed.
        tests: Test -> ``passed``, ``failed`` (also outside its body) or ``skipped``.
    """

    exit_code: int
    output: str
    tests: dict[str, str] = field(default_factory=dict)

    def passed(self) -> set[str]:
        """Return the tests that passed."""
        return {test for test, outcome in self.tests.items() if outcome == "passed"}

    def is_skipped(self) -> bool:
        """Whether there were tests, and this release has use for none of them."""
        return bool(self.tests) and set(self.tests.values()) == {"skipped"}


def run_groups(
    checkout: Path,
    groups: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    *,
    imported: Sequence[str],
    torch_binding: Path | None = None,
    patience_s: int = 120,
) -> dict[str, Answer]:
    """Run groups of files over a checkout, and return their answers.

    Args:
        checkout: Where vllm-ascend is taken from.
        groups: Name -> paths; relative ones are the checkout's.
        environment: All variables of the process.
        imported: Modules that are imported once for all.
        torch_binding: Of a release: the CPU runs the operators that it names, instead of mocks.
        patience_s: A test that takes longer hangs: it ends its group, with a traceback.
    """
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "task.json"
        binding = str(torch_binding) if torch_binding else None
        told = {
            "imported": list(imported),
            "groups": dict(groups),
            "torch_binding": binding,
            "patience_s": patience_s,
        }
        task.write_text(json.dumps(told))
        result = subprocess.run(
            [sys.executable, __file__, checkout, task],
            cwd=checkout,
            # Nothing that happens to be installed changes vllm-ascend's tests.
            env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        told = json.loads(task.read_text(encoding="utf-8"))
    return {name: Answer(**answer) for name, answer in told.items()}


class _Outcomes:
    """A plugin of pytest that notes what became of every test."""

    def __init__(self) -> None:
        self.tests: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            both = (report.outcome, self.tests.get(report.nodeid, report.outcome))
            self.tests[report.nodeid] = min(both, key=_OUTCOMES.index)


def _run_forked(checkout: str, files: Sequence[str], patience_s: int) -> Answer:
    """Run a group in a fork; what it prints comes back with the outcomes."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as outcomes:
        child = os.fork()
        if not child:
            exit_code = 1
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                noted = _Outcomes()
                patience = ("-o", f"faulthandler_timeout={patience_s}")
                # Nothing above the checkout is its conftest.
                place = (f"--rootdir={checkout}", f"--confcutdir={checkout}")
                options = [*_OPTIONS, *patience, *place, *files]
                exit_code = int(pytest.main(options, [noted]))
                json.dump(noted.tests, outcomes)
                outcomes.flush()
                sys.stdout.flush()
            finally:
                os._exit(exit_code)  # nothing of the parent's is torn down here
        _, status = os.waitpid(child, 0)
        for stream in (output, outcomes):
            stream.seek(0)
        tests = json.loads(outcomes.read() or "{}")
        return Answer(os.waitstatus_to_exitcode(status), output.read(), tests)


def _main(checkout: str, task: Path) -> None:
    told = json.loads(task.read_text(encoding="utf-8"))
    if told["torch_binding"]:
        sys.path.insert(0, str(Path(__file__).parents[2]))
        from tests.upstream.npu_reference import device

        device.install(Path(checkout).resolve(), Path(told["torch_binding"]))
        device.register_plugins()
    else:
        from stub import install  # this folder is the first on the path

        install(Path(checkout).resolve(), device_type=os.environ.get("STUB_DEVICE_TYPE", "A3"))
    for module in told["imported"]:
        importlib.import_module(module)
    gc.freeze()  # or the first collection in a child would copy all of the parent's memory
    answers = {
        name: asdict(_run_forked(checkout, files, told["patience_s"]))
        for name, files in told["groups"].items()
    }
    task.write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
