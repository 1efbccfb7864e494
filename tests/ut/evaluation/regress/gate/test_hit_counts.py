# SPDX-License-Identifier: Apache-2.0
"""Hits are counted once per request, however often a request that waits is looked up."""

import json

import pytest

from tests.ut.evaluation.regress.chat_server import ChatServer
from tests.ut.evaluation.regress.gate.command import PERFORMANCE, invoke, outcomes, report_of
from vllm_ascend_evaluation.regress.hit_counts import OUR_HITS, USAGE, VLLMS_HITS
from vllm_ascend_evaluation.regress.results import LOOK_UPS

# As schema 2 wrote it: hits and prompt tokens by look-ups.
OF_SCHEMA_2 = {"query_tokens": 35_000, "hit_tokens": 30_000, "counters": {}}


@pytest.mark.parametrize(
    ("counts", "source"), [("ours", OUR_HITS), ("vllm", VLLMS_HITS), ("none", USAGE)]
)
@pytest.mark.parametrize("look_ups", [1, 5])
def test_every_request_counts_once_and_the_source_is_told(tmp_path, counts, source, look_ups):
    with ChatServer(counts=counts, look_ups=look_ups) as server:
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert result.exit_code == 0, result.output
    report = report_of(tmp_path)
    (load,) = report["performance"]["loads"]
    cache = {name: load["cache"][name] for name in ("prompt_tokens", "hit_tokens", "source")}
    assert cache == {"prompt_tokens": 7000, "hit_tokens": 5250, "source": source}
    assert report["notes"] == []
    assert f"hits counted: once per request, by {source}" in result.output
    assert f"once per request, by {source}" in (tmp_path / "out/regress.html").read_text().replace(
        "&#34;", '"'
    )


def test_without_counters_a_second_load_of_the_same_shape_is_sent(tmp_path):
    """One prompt ahead, as the tool does it; prompts of its own, with a common beginning."""
    with ChatServer(counts="none") as server:
        assert invoke(server, tmp_path, *PERFORMANCE).exit_code == 0
    tools, own = server.bodies[:7], [body for _, body in server.bodies[7:]]
    assert all("stream" not in body for _, body in tools) and len(own) == 7
    prompts = [body["prompt"] for body in own]
    assert prompts.count(prompts[0]) == 2
    assert {len(prompt) for prompt in prompts} == {1000}
    assert {tuple(prompt[:900]) for prompt in prompts} == {tuple(prompts[0][:900])}
    assert len({tuple(prompt) for prompt in prompts}) == 6
    assert {body["max_tokens"] for body in own} == {8}


def test_answers_that_do_not_tell_their_hits_are_noticed(tmp_path):
    with ChatServer(counts="none", says_cached=False) as server:
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert result.exit_code == 0, result.output
    (note,) = report_of(tmp_path)["notes"]
    assert "nothing was found" in note and "--enable-prompt-tokens-details" in note


def test_a_server_that_refuses_the_second_load_is_named(tmp_path):
    with ChatServer(counts="none", fails_from=9) as server:
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert result.exit_code == 2, result.output
    assert "/v1/completions: status 500: the engine died" in result.output


def test_a_baseline_that_counted_look_ups_is_not_compared_by_them(tmp_path):
    """86 % of look-ups must not make 75 % of requests a regression."""
    base = tmp_path / "base.json"
    with ChatServer() as server:
        assert invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base).exit_code == 0
        data = json.loads(base.read_text())
        data["schema_version"] = 2
        for load in data["performance"]["loads"]:
            load["cache"] = OF_SCHEMA_2
        base.write_text(json.dumps(data))
        result = invoke(server, tmp_path, *PERFORMANCE, "--baseline", base, "--restart")
    assert result.exit_code == 0, result.output
    assert outcomes(tmp_path)["hit-rate"] == "not compared"
    (note,) = report_of(tmp_path)["notes"]
    assert "the baseline counts look-ups" in note and "measure it anew" in note
    assert LOOK_UPS not in result.output  # nothing of this run is by them


def test_counts_of_another_kind_are_compared_and_noted(tmp_path):
    base = tmp_path / "base.json"
    with ChatServer(counts="vllm") as server:
        assert invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base).exit_code == 0
        server.counts = "ours"
        result = invoke(server, tmp_path, *PERFORMANCE, "--baseline", base, "--restart")
    assert result.exit_code == 0, result.output
    assert outcomes(tmp_path)["hit-rate"] == "pass"
    (note,) = report_of(tmp_path)["notes"]
    assert VLLMS_HITS in note and OUR_HITS in note
