# SPDX-License-Identifier: Apache-2.0
"""Hits are counted once per request, however often a request that waits is looked up."""

import json

import pytest

from tests.ut.evaluation.regress.chat_server import ChatServer
from tests.ut.evaluation.regress.gate.command import PERFORMANCE, invoke, outcomes, report_of
from vllm_ascend_evaluation.regress.hit_counts import OUR_HITS, VLLMS_HITS
from vllm_ascend_evaluation.regress.results import LOOK_UPS, USAGE

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


def test_hits_that_no_answer_tells_are_not_known(tmp_path):
    """Nor are they 0: vLLM tells them only if it is started so."""
    junit, markdown = tmp_path / "j.xml", tmp_path / "m.md"
    with ChatServer(counts="none", says_cached=False) as server:
        result = invoke(server, tmp_path, *PERFORMANCE, "--junit", junit, "--markdown", markdown)
    assert result.exit_code == 0, result.output
    report = report_of(tmp_path)
    (note,) = report["notes"]
    assert "the hit rate is not known: no answer" in note
    assert "--enable-prompt-tokens-details" in note
    (load,) = report["performance"]["loads"]
    assert load["cache"]["hit_tokens"] is load["cache"]["hit_rate_percent"] is None
    (verdict,) = [v for v in report["verdicts"] if v["metric"] == "hit-rate"]
    assert (verdict["now"], verdict["outcome"]) == (None, "not known")
    assert "hit rate, % of tokens - not known" in result.output
    assert "hit tokens: not known" in result.output
    told = (result.output, junit.read_text(), (tmp_path / "out/regress.html").read_text())
    assert not any("0.00" in text for text in told)
    assert "| hit rate, % of tokens | - | - | - | - | - | not known |" in markdown.read_text()


@pytest.mark.parametrize("silent", ["the baseline", "this run"])
def test_what_only_one_side_tells_is_neither_better_nor_worse(tmp_path, silent):
    base = tmp_path / "base.json"
    with ChatServer(counts="none", says_cached=silent != "the baseline") as server:
        assert invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base).exit_code == 0
        server.says_cached = not server.says_cached
        result = invoke(server, tmp_path, *PERFORMANCE, "--baseline", base, "--restart")
    assert result.exit_code == 0, result.output
    assert outcomes(tmp_path)["hit-rate"] == "not known"
    (note,) = report_of(tmp_path)["notes"]
    assert f"the hit rate could not be judged: of {silent} it is not known" in note
    assert "no regression in 5 metrics; could not be judged: hit rate" in result.output


def test_a_zero_of_before_by_answers_is_not_known(tmp_path):
    """Up to schema 3 answers that told nothing counted as no hits."""
    base = tmp_path / "base.json"
    with ChatServer(counts="none") as server:
        assert invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base).exit_code == 0
        data = json.loads(base.read_text())
        data["schema_version"] = 3
        data["performance"]["loads"][0]["cache"]["hit_tokens"] = 0
        base.write_text(json.dumps(data))
        result = invoke(server, tmp_path, *PERFORMANCE, "--baseline", base, "--restart")
    assert result.exit_code == 0, result.output
    assert outcomes(tmp_path)["hit-rate"] == "not known"


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
