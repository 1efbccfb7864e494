# SPDX-License-Identifier: Apache-2.0
"""``--cost-model`` of ``replay`` and ``goodput``, and arrivals at random."""

import json
from pathlib import Path

import pytest

from tests.ut.evaluation.replay.test_commands import PNG, invoke, runner
from vllm_ascend_evaluation.replay.cost.model import CostModel
from vllm_ascend_evaluation.replay.cost.stored import StoredCostModel
from vllm_ascend_evaluation.replay.sources import WorkloadSource

__all__ = ["runner"]  # a fixture

MODEL = CostModel(12.0, 40.0, 150.0, 3.0, 2.0, 25.0)
COMMANDS = [
    ("replay", "--workload", "chat:2", "--variant", "best"),
    ("goodput", "--workload", "chat:2", "--variant", "best", "--json", "g.json", *PNG),
]


@pytest.fixture(autouse=True)
def in_a_folder_with_a_cost_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cost.json").write_text(StoredCostModel(MODEL, "dsv4-flash-a3").to_json())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_runs_have_the_model_of_the_file(runner, command):
    result = invoke(*command, "--cost-model", "cost.json")
    assert result.exit_code == 0, result.output
    assert runner.jobs and all(job.cost_model == MODEL for job in runner.jobs)
    assert "prefill_pair_ns 3" in " ".join(result.output.split())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--step-ms", "3"), "--cost-model cost.json: goes without --step-ms"),
        (("--layout", "dsv4-flash-gpu"), "fitted to layout dsv4-flash-a3, and --layout is dsv4"),
        (
            ("--variant", "stock@dsv4-flash-gpu"),
            "--variant stock@dsv4-flash-gpu: layout is dsv4-flash-gpu",
        ),
    ],
)
def test_what_does_not_go_with_a_file_is_refused(runner, tmp_path, command, options, said):
    result = invoke(*command, "--cost-model", "cost.json", *options)
    assert result.exit_code == 2 and said in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["cost.json"]


def test_without_a_file_the_two_numbers_hold(runner):
    assert invoke(*COMMANDS[0], "--arrivals", "timestamps", "--step-ms", "3").exit_code == 0
    assert [job.cost_model for job in runner.jobs] == [CostModel(3.0, 60.0)]


def test_requests_come_at_random(runner):
    result = invoke(*COMMANDS[0], "--arrivals", "poisson:2.5")
    assert result.exit_code == 0, result.output
    (job,) = runner.jobs
    assert (job.arrivals, job.workload.poisson_rate) == ("timestamps", 2.5)
    (workload,) = json.loads(Path("replay-out/report.json").read_text())["workloads"]
    assert workload["description"].endswith("; 2.5 per s at random")


@pytest.mark.parametrize(
    "arrivals", ["poisson", "poisson:", "poisson:0", "poisson:-1", "poisson:inf", "gamma:2", "open"]
)
def test_other_arrivals_are_refused(runner, arrivals):
    result = invoke(*COMMANDS[0], "--arrivals", arrivals)
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert f"--arrivals {arrivals}: allowed are closed, timestamps and poisson:RATE" in said


@pytest.mark.parametrize("option", [("--speed", "2"), ("--concurrency", "3"), ("--timestamps",)])
def test_what_goes_without_random_arrivals(runner, option):
    result = invoke(*COMMANDS[0], "--arrivals", "poisson:2", *option)
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert f"{option[0]} goes without" in said or f"goes without {option[0]}" in said


def times(rate, seed=0, source="300:100:0:1"):
    workload = WorkloadSource(source, seed, poisson_rate=rate).load()
    return [request.arrival_ms for request in workload.requests()]


def test_random_arrivals_have_their_rate_and_their_seed():
    of_seed = times(4.0)
    assert times(4.0) == of_seed != times(4.0, seed=1)
    assert of_seed[0] == 0 and of_seed == sorted(of_seed)
    assert 1000 * 299 / of_seed[-1] == pytest.approx(4.0, rel=0.15)
    # The same gaps, twice as short.
    assert times(8.0) == pytest.approx([ms / 2 for ms in of_seed])


def test_random_arrivals_take_the_place_of_timestamps_and_think_times():
    requests = list(WorkloadSource("chat:20", poisson_rate=1.0).load().requests())
    assert all(request.think_ms is None for request in requests)
    own = [request.arrival_ms for request in WorkloadSource("chat:20").load().requests()]
    assert [request.arrival_ms for request in requests] != own


def test_a_file_without_times_can_come_at_random(runner, tmp_path):
    path = tmp_path / "ids.jsonl"
    path.write_text('{"prompt_token_ids": [1, 2, 3], "output_length": 1}\n' * 2)
    arguments = ("replay", "--workload", str(path), "--variant", "best")
    assert invoke(*arguments, "--arrivals", "timestamps").exit_code == 2
    result = invoke(*arguments, "--arrivals", "poisson:1")
    assert result.exit_code == 0, result.output
