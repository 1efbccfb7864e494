# SPDX-License-Identifier: Apache-2.0
"""Measures sides in turn, each in a fork of one process that has imported vLLM.

Patches cannot be taken off again, and importing vLLM takes longer than most measurements. So one
process imports it, and for every question a fork becomes one side, lets pytest-benchmark run the
cases asked for, and ends.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.children import Child, answer_all
from benchmarks.microscope.cases import Case
from benchmarks.microscope.sides import SIDES, STOCK, Side

_FOLDER = Path(__file__).parent
# Case -> what was found: "ms", and "hit_tokens" or "key_bytes" where there are such.
Samples = dict[str, dict[str, float]]


class ForkServer(Child):
    """A process that measures any side."""

    def __init__(self) -> None:
        super().__init__(__name__, environment={})

    def measure(self, side: Side, cases: Sequence[Case]) -> Samples:
        """Return what each case takes on a side, in milliseconds of CPU time.

        Raises:
            ChildError: A case failed.
        """
        nodes = [f"{case.file}::{case.name}" for case in cases]
        return self.ask({"side": asdict(side), "nodes": nodes})


def _answer(question: dict[str, Any]) -> Samples:
    with tempfile.TemporaryDirectory() as folder:
        report, output = Path(folder) / "report.json", Path(folder) / "output"
        child = os.fork()
        if not child:
            _become_side(Side(**question["side"]), question["nodes"], report, output)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(output.read_text())
        benchmarks = json.loads(report.read_text())["benchmarks"]
    return {benchmark["name"]: _sample(benchmark) for benchmark in benchmarks}


def _become_side(side: Side, nodes: Sequence[str], report: Path, output: Path) -> None:
    """Run pytest on a side; does not return."""
    status = 1
    try:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        import pytest

        SIDES[side.key] = side
        paths = [f"{_FOLDER}/{node}" for node in nodes]
        status = pytest.main([*paths, f"--side={side.key}", f"--benchmark-json={report}"])
    finally:
        sys.stdout.flush()
        os._exit(status)


def _sample(benchmark: dict[str, Any]) -> dict[str, float]:
    """Return the median over the operations, each of which may be many calls."""
    info, data = benchmark["extra_info"], benchmark["stats"]["data"]
    calls, operations = info.pop("calls", 1), info.pop("operations", 1)
    sums = [sum(data[i : i + calls]) / operations for i in range(0, len(data), calls)]
    return {"ms": 1000 * statistics.median(sums), **info}


def _import_all() -> None:
    """Import what forks will need, and build one scheduler, which imports more."""
    import pytest_benchmark.plugin  # noqa: F401

    from benchmarks.microscope.workbench import build

    build(SIDES[STOCK])
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    # Plugins of others would be loaded in every fork, and pytest thinks it is a worker of a test
    # run that started us.
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["PYTEST_PLUGINS"] = "pytest_benchmark.plugin"
    _import_all()
    answer_all(_answer)
