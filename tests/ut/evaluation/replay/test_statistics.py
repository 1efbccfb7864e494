# SPDX-License-Identifier: Apache-2.0
"""Statistics of traffic, by hand, and the command that prints them."""

import json

import pytest
from typer.testing import CliRunner

from vllm_ascend.__main__ import app
from vllm_ascend_evaluation.replay import traffic
from vllm_ascend_evaluation.replay.curves.policies import PrefixTrace
from vllm_ascend_evaluation.replay.statistics import Spread, continued_requests, measure
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload


def workload(*requests: TraceRequest) -> Workload:
    return Workload("by hand", "", 1, len(requests), lambda: iter(requests))


def ask(prompt: str, second: float | None = None, session: int | None = None) -> TraceRequest:
    arrival_ms = None if second is None else 1000 * second
    return TraceRequest([ord(letter) for letter in prompt], len(prompt), arrival_ms, session)


def test_by_hand():
    """Blocks of two tokens: the third request goes on with the first, the fourth is another one."""
    of = measure(
        workload(ask("abcdef", 0, 0), ask("xyxy", 1, 1), ask("abcdefgh", 7, 0), ask("abzz", 9, 2)),
        2,
        [1, 100],
    )
    assert (of.name, of.num_requests, of.duration_s) == ("by hand", 4, 9)
    assert of.prompt_tokens == Spread(mean=5.5, median=5.0, p90=pytest.approx(7.4), largest=8)
    assert of.output_tokens == of.prompt_tokens
    assert (of.session_requests.mean, of.session_requests.largest) == (pytest.approx(4 / 3), 2)
    assert of.continued == 0.25
    assert of.gap_s == Spread(mean=7, median=7, p90=7, largest=7)
    assert of.unlimited == of.lru[100] == of.belady[100] == pytest.approx(100 * (6 + 2) / 22)
    assert of.lru[1] < of.belady[1] < of.unlimited


def test_what_is_not_known_is_left_out():
    of = measure(workload(ask("abcd"), ask("abcdef")), 2, [])
    assert (of.duration_s, of.session_requests, of.gap_s) == (None, None, None)
    assert of.continued == 0.5


def test_a_shared_beginning_is_no_next_turn():
    prompts = ["abcd__", "abcdefgh", "ab", "abcdefghij", "abc"]
    trace = PrefixTrace.of([[ord(letter) for letter in prompt] for prompt in prompts], 2)
    # The second shares two of three blocks with the first, which may have ended inside the third.
    assert continued_requests(trace) == {1: 0, 3: 1}


def test_the_command_prints_a_table_for_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(traffic, "_bytes_per_block", lambda: 1 << 20)
    trace = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]}
    rows = [row, {**row, "timestamp": 60_000}]
    trace.write_text("".join(json.dumps(each) + "\n" for each in rows))
    arguments = ("traffic", "--workload", str(trace), "--workload", "agentic:4", "--kv-gib", "1")
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in result.stdout.splitlines()
        if line.startswith("|")
    }
    assert cells[""] == ["trace.jsonl", "agentic:4"]
    assert cells["requests"] == ["2", "4"]
    assert cells["minutes"][0] == "1"
    assert cells["prompt tokens: mean, median"][0] == "1,024, 1,024"
    assert cells["requests per session: mean, median"][0] == "-"
    assert cells["LRU, 1 GiB, %"][0] == cells["unlimited cache, %"][0] == "49.95"


def test_what_cannot_be_read_ends_the_command():
    result = CliRunner().invoke(app, ("traffic", "--workload", "W4"), env={"COLUMNS": "500"})
    assert result.exit_code == 2
    assert "conversation_trace.jsonl of https://github.com/kvcache-ai/Mooncake" in result.output
    assert len(result.output.strip().splitlines()) == 1
