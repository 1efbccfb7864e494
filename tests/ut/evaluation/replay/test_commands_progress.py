# SPDX-License-Identifier: Apache-2.0
"""What is shown while runs are under way, on a terminal and off it."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tests.ut.evaluation.replay.runs.test_runner import make_job
from tests.ut.evaluation.replay.test_commands import SMALL, StandIn
from tests.ut.evaluation.replay.test_report import make_run
from vllm_ascend_evaluation.replay import commands
from vllm_ascend_evaluation.replay.runs.runner import Outcome
from vllm_ascend_evaluation.replay.sources import WorkloadSource


def shown(monkeypatch, num_jobs: int, work, *, is_terminal: bool) -> list[str]:
    """Return the lines that are on the screen at the end, if ``work`` tells the watcher."""
    file = io.StringIO()
    console = Console(
        file=file, width=100, emoji=False, force_terminal=is_terminal, force_interactive=is_terminal
    )
    monkeypatch.setattr(commands, "error_console", console)

    class Runner(StandIn):
        def run(self, jobs):
            work(self._watcher)
            return Outcome([], interrupted=True)

    monkeypatch.setattr(commands, "Runner", Runner)
    source = WorkloadSource(SMALL[1])
    workloads = commands.load_workloads([source], max_model_len=1000)
    jobs = [replace(make_job(f"v{number}"), workload=source) for number in range(num_jobs)]
    commands.run_jobs(jobs, 1, workloads)
    # What is drawn anew begins at the start of its first line again.
    last = re.split(r"\x1b\[1A\x1b\[2K", file.getvalue())[-1] if num_jobs > 12 else file.getvalue()
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).strip() for line in last.splitlines()]


def test_on_a_terminal_a_table_fills_with_what_runs_found(monkeypatch):
    def work(watcher):
        watcher.advance(0, 1)
        watcher.finish(1, make_run("v1", num_requests=2))
        watcher.drop(2, "refused")

    rows = [line for line in shown(monkeypatch, 3, work, is_terminal=True) if "━" in line]
    name, _, first = rows[-3].partition("━")
    assert name.strip() == "2:100:50:1  v0" and "1/2" in first and "hits" not in first
    assert "2:100:50:1  v1" in rows[-2] and "2/2" in rows[-2] and "hits 30.85 %" in rows[-2]
    assert rows[-1].endswith("refused")


def test_of_many_jobs_those_at_work_a_count_and_lines_of_those_that_ended(monkeypatch):
    def work(watcher):
        watcher.finish(0, make_run("v0"))
        watcher.advance(7, 1)

    lines = shown(monkeypatch, 40, work, is_terminal=True)
    assert [line.split("━")[0].strip() for line in lines if "━" in line][-2:] == [
        *("all runs", "2:100:50:1  v7")
    ]


@pytest.mark.parametrize("num_jobs", [3, 40])
def test_off_a_terminal_a_line_per_finished_run_and_no_bars(monkeypatch, num_jobs):
    def work(watcher):
        watcher.advance(0, 1)
        watcher.finish(1, make_run("v1"))
        watcher.drop(2, "refused")

    lines = shown(monkeypatch, num_jobs, work, is_terminal=False)
    assert len(lines) == 2
    assert lines[0].startswith(f"[1/{num_jobs}] 2:100:50:1  v1: hits 30.85 % of ")
    assert lines[1] == f"[2/{num_jobs}] 2:100:50:1  v2: refused"
