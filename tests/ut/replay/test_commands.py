# SPDX-License-Identifier: Apache-2.0
"""The new commands against a runner that runs nothing: exit codes, files, refusals, interrupts."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.ut.replay.test_report import make_run
from tests.ut.replay.test_runner import make_job
from vllm_ascend.__main__ import app
from vllm_ascend.replay import commands
from vllm_ascend.replay.job import WorkloadSource
from vllm_ascend.replay.runner import Outcome

SMALL = ("--workload", "2:100:50:1")
GIB = 1 << 30


class StandIn:
    """Answers with hand-made runs; what it was asked to run is kept."""

    jobs = []
    refused = ()
    outcome = {"interrupted": False}

    def __init__(self, num_parallel, on_progress, on_refusal=None):
        self._on_progress = on_progress
        self._on_refusal = on_refusal

    def run(self, jobs):
        type(self).jobs = jobs
        results = []
        for index, job in enumerate(jobs):
            if index in self.refused:
                self._on_refusal(index, f"{job.variant} on {job.layout}: odd")
                continue
            self._on_progress(index, 2, 2)
            run = make_run(
                job.variant, workload=job.workload.source, kv_memory_bytes=job.kv_memory_bytes
            )
            results.append(run)
        return Outcome(results[:-1] if self.outcome["interrupted"] else results, **self.outcome)


@pytest.fixture
def runner(monkeypatch):
    class Runner(StandIn):
        pass

    monkeypatch.setattr(commands, "Runner", Runner)
    return Runner


def invoke(*arguments: str):
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})


def sweep(folder, *arguments: str):
    json_file, markdown = folder / "new" / "s.json", folder / "s.md"
    return invoke(
        "sweep", *SMALL, "--json", str(json_file), "--markdown", str(markdown), *arguments
    )


def test_all_axes_of_a_sweep(runner, tmp_path):
    result = sweep(tmp_path)
    assert result.exit_code == 0, result.output
    # Block sizes x MTP x partial hits x intervals, and the profile per block size and MTP.
    assert len(runner.jobs) == 3 * 2 * 2 * 4 + 3 * 2
    assert {job.kv_memory_bytes for job in runner.jobs} == {16 * GIB}
    assert {job.layout for job in runner.jobs} == {"dsv4-flash-a3"}
    assert {job.num_speculative_tokens for job in runner.jobs} == {0, 1}
    assert "30.85" in result.output
    assert "30.85" in (tmp_path / "s.md").read_text()


def test_selected_axes_of_a_sweep(runner, tmp_path):
    selected = ("--block-size", "64", "--interval", "0", "--partial", "1", "--mtp", "2")
    assert sweep(tmp_path, *selected, "--no-best", "--kv-gib", "8").exit_code == 0
    (job,) = runner.jobs
    assert (job.block_size, job.num_speculative_tokens) == (64, 2)
    assert job.kv_memory_bytes == 8 * GIB
    assert job.environment["VLLM_ASCEND_DSV4_PARTIAL_HITS"] == "1"


def test_a_refused_setting_is_no_failure(runner, tmp_path):
    runner.refused = (1,)
    result = sweep(tmp_path, "--block-size", "128", "--mtp", "0", "--partial", "0")
    assert result.exit_code == 0
    assert "refused: odd" in result.output
    report = json.loads((tmp_path / "new" / "s.json").read_text())
    assert [cell["refusal"] for cell in report["cells"]] == [None, "odd", None, None, None]
    assert report["complete"]


def test_if_all_is_refused_the_input_is_bad(runner, tmp_path):
    runner.refused = range(100)
    result = sweep(tmp_path)
    assert result.exit_code == 2
    assert not (tmp_path / "s.md").exists()


def test_an_interrupted_sweep_keeps_what_there_is(runner, tmp_path):
    runner.outcome = {"interrupted": True}
    result = sweep(tmp_path, "--block-size", "128", "--mtp", "0", "--partial", "0")
    assert result.exit_code == 130
    assert "did not run to its end" in result.output
    report = json.loads((tmp_path / "new" / "s.json").read_text())
    assert len(report["workloads"][0]["runs"]) == 4 and not report["complete"]


def test_a_died_run_decides_the_exit_code(runner, tmp_path):
    runner.outcome = {"interrupted": False, "failures": ("it died",)}
    assert sweep(tmp_path).exit_code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("sweep", "--workload", "nowhere"),
        ("sweep", *SMALL, "--partial", "2"),
        ("sweep", *SMALL, "--block-size", "48"),
        ("sweep", *SMALL, "--interval", "often"),
        ("memory-curve", "--workload", "nowhere"),
        ("memory-curve", *SMALL, "--block-size", "48"),
    ],
)
def test_bad_input_ends_before_anything_runs(runner, tmp_path, arguments):
    result = invoke(*arguments, "--json", str(tmp_path / "new" / "x.json"))
    assert result.exit_code == 2
    assert runner.jobs == [] and not list(tmp_path.iterdir())


def curve(folder, *arguments: str):
    files = ("--json", str(folder / "c.json"), "--png", str(folder / "c.png"))
    return invoke("memory-curve", *SMALL, *files, *arguments)


def test_a_memory_curve_has_three_lines_and_six_memories(runner, tmp_path):
    result = curve(tmp_path)
    assert result.exit_code == 0, result.output
    assert len(runner.jobs) == 3 * 6
    assert {job.kv_memory_bytes // GIB for job in runner.jobs} == {4, 8, 16, 32, 64, 128}
    assert {job.block_size for job in runner.jobs} == {128}
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((tmp_path / "c.json").read_text())
    assert [line["name"] for line in report["bounds"]] == ["LRU", "Belady (optimal)"]


def test_memories_that_do_not_suffice_are_left_out(runner, tmp_path):
    runner.refused = (0, 1, 2)
    result = curve(tmp_path, "--kv-gib", "1", "--kv-gib", "8", "--block-size", "32")
    assert result.exit_code == 0
    assert "1 GiB refused: odd" in result.output
    assert [job.block_size for job in runner.jobs] == [128, 32, 32] * 2


def test_replay_takes_a_number_of_drafts(runner, tmp_path):
    result = invoke("replay", *SMALL, "--mtp", "3", "--out", str(tmp_path), "--variant", "best")
    assert result.exit_code == 0
    assert [job.num_speculative_tokens for job in runner.jobs] == [3]


def shown(monkeypatch, num_jobs: int, progress_of: dict[int, int]) -> list[str]:
    """Return the descriptions of the bars that a run of so many jobs leaves on the screen."""
    console = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(commands, "_err", console)

    class Runner(StandIn):
        def run(self, jobs):
            for index, done in progress_of.items():
                self._on_progress(index, done, 2)
            return Outcome([], interrupted=True)

    monkeypatch.setattr(commands, "Runner", Runner)
    source = WorkloadSource(SMALL[1])
    workloads = commands.load_workloads([source], max_model_len=1000)
    jobs = [replace(make_job(f"v{number}"), workload=source) for number in range(num_jobs)]
    commands.run_jobs(jobs, 1, workloads)
    lines = console.file.getvalue().splitlines()
    return [line.split("━")[0].strip() for line in lines if "━" in line]


def test_a_bar_per_job_while_they_are_few(monkeypatch):
    bars = shown(monkeypatch, 3, {0: 2, 1: 1})
    assert bars == [f"2:100:50:1  v{number}" for number in range(3)]


def test_of_many_jobs_those_at_work_and_a_count(monkeypatch):
    assert shown(monkeypatch, 40, {0: 2, 7: 1}) == ["all runs", "2:100:50:1  v7"]
