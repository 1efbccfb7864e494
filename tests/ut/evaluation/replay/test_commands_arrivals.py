# SPDX-License-Identifier: Apache-2.0
"""How requests come in: what a command notes, refuses and writes into its report."""

import json

import pytest

from tests.ut.evaluation.replay.test_commands import StandIn, invoke
from vllm_ascend_evaluation.replay import commands


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    class Runner(StandIn):
        pass

    monkeypatch.setattr(commands, "Runner", Runner)


@pytest.mark.parametrize(
    ("options", "is_noted"),
    [
        (("--concurrency", "2"), True),
        (("--concurrency", "1"), False),
        (("--arrivals", "timestamps"), False),
    ],
)
def test_requests_that_all_start_together_are_noted(tmp_path, options, is_noted):
    trace = tmp_path / "two.jsonl"
    record = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
    trace.write_text("".join(json.dumps(record) + "\n" for _ in range(2)))
    arguments = ("replay", "--workload", str(trace), *options, "--out", str(tmp_path / "out"))
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert ("all 2 requests start together" in said) is is_noted


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--concurrency", "5"), "5 at a time"), (("--arrivals", "timestamps"), "at their timestamp")],
)
def test_a_report_says_how_requests_come_in(tmp_path, options, words):
    result = invoke("replay", "--workload", "chat:3", *options, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert f"; {words}" in report["workloads"][0]["description"]


def test_there_is_no_concurrency_where_timestamps_say_when(tmp_path):
    options = ("--arrivals", "timestamps", "--concurrency", "5")
    result = invoke("replay", "--workload", "chat:3", *options, "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "--concurrency goes without timestamps" in " ".join(result.output.split())


def test_turns_that_wait_for_each_other_do_not_start_together(tmp_path):
    chat = tmp_path / "chat.jsonl"
    turns = [{"prompt_token_ids": list(range(300 * n)), "output_length": 1} for n in (1, 2)]
    waiting = [{**turn, "session": 1, "delay": 0} for turn in turns]
    chat.write_text("".join(json.dumps(turn) + "\n" for turn in waiting))
    result = invoke("replay", "--workload", str(chat), "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert "start together" not in " ".join(result.output.split())
