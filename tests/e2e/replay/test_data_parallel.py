# SPDX-License-Identifier: Apache-2.0
"""Several ranks behind one front end: what is added up, and what the choice by cache brings."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.e2e.replay.in_process import invoke
from vllm_ascend_evaluation.replay.results import RunResult

_RANKS = ("--data-parallel", "2", "--variant", "best", "--max-output-tokens", "4")


def replayed(tmp_path, routing: str, workload: str, *more: str, kv_gib: str = "4") -> RunResult:
    """Run one workload on two ranks; return what the report tells."""
    out = tmp_path / routing
    arguments = ("--workload", workload, "--dp-routing", routing, "--out", str(out), *more)
    result = invoke("replay", *_RANKS, "--kv-gib", kv_gib, *arguments)
    assert result.exit_code == 0, result.output
    assert f"2 by {routing}, KV {kv_gib} GiB each" in result.output
    assert "hits of ranks" in " ".join(result.output.split())
    assert "Hit rate by data-parallel rank" in (out / "report.html").read_text()
    (run,) = json.loads((out / "report.json").read_text())["workloads"][0]["runs"]
    derived = ("hit_rate_percent", "request_hit_rate_percent", "saved_work_percent")
    return RunResult.from_dict({name: run[name] for name in run if name not in derived})


def test_sessions_hit_more_where_they_are(tmp_path):
    """Two prefixes in turn; vLLM's balancer sends each to both ranks."""
    runs = {
        routing: replayed(tmp_path, routing, "2x12:2000:200:4", "--concurrency", "3", "--verify")
        for routing in ("vllm", "cache")
    }
    by_vllm, by_cache = runs["vllm"], runs["cache"]
    assert by_cache.hit_tokens > by_vllm.hit_tokens
    for run in runs.values():
        ranks = run.data_parallel
        assert ranks is not None and not run.violations
        assert sum(ranks.num_requests) == run.num_requests == 24
        assert sum(ranks.computed_tokens) == run.prompt_tokens - run.hit_tokens
        hits = np.dot(ranks.hit_rates, ranks.prompt_tokens) / 100
        assert hits == pytest.approx(run.hit_tokens)
        assert min(ranks.num_requests) > 0 and ranks.choice_us.p50 > 0
    assert by_cache.data_parallel.num_predicted > 20
    assert by_vllm.data_parallel.num_predicted == 0


def test_turns_are_counted_that_leave_the_rank_of_their_session(tmp_path):
    lines = [
        {
            "input_length": 512 * (turn + 3),
            "output_length": 4,
            "hash_ids": [1000 * session + block for block in range(turn + 3)],
            "session": session,
        }
        for turn in range(6)
        for session in range(3)
    ]
    trace = tmp_path / "sessions.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)))
    by_vllm, by_cache = (
        replayed(tmp_path, routing, str(trace), "--concurrency", "2").data_parallel
        for routing in ("vllm", "cache")
    )
    assert (by_vllm.num_sessions, by_cache.num_sessions) == (3, 3)
    assert 0 == by_cache.num_moves < by_vllm.num_moves <= 15


def test_the_memory_curve_has_ranks_too(tmp_path):
    """Two prefixes in turn, as above."""
    rates = {}
    for routing in ("vllm", "cache"):
        json_file = tmp_path / f"{routing}.json"
        files = ("--json", str(json_file), "--png", str(tmp_path / "curve.png"))
        traffic = ("--workload", "2x12:2000:200:4", "--concurrency", "3", "--kv-gib", "4")
        result = invoke(
            *("memory-curve", *traffic, "--data-parallel", "2", "--dp-routing", routing, *files)
        )
        assert result.exit_code == 0, result.output
        runs = json.loads(json_file.read_text())["workloads"][0]["runs"]
        assert all(run["data_parallel"]["routing"] == routing for run in runs)
        rates[routing] = {run["variant"]: run["hit_rate_percent"] for run in runs}
    assert rates["cache"]["best"] > rates["vllm"]["best"]


def test_cold_prompts_are_balanced(tmp_path):
    run = replayed(tmp_path, "cache", "16:2000:0:4", "--concurrency", "8")
    assert run.hit_tokens == 0
    assert run.data_parallel.num_requests == (8, 8)


def test_every_rank_loads_from_a_tier_of_its_own(tmp_path):
    """A prefix that a cache could not keep comes back from the tier of the rank that had it."""
    traffic = ("25x3:4000:200:4", "--concurrency", "3", "--max-model-len", "8192")
    without = replayed(tmp_path / "without", "cache", *traffic, kv_gib="0.6")
    tiers = {
        routing: replayed(tmp_path / "with", routing, *traffic, "--tier-gib", "2", kv_gib="0.6")
        for routing in ("vllm", "cache")
    }
    by_vllm, by_cache = tiers["vllm"], tiers["cache"]
    assert without.tier is None
    assert by_cache.tier.gib == 2 and by_cache.tier.num_loads
    assert by_cache.hit_tokens > without.hit_tokens
    assert by_cache.hit_tokens > by_vllm.hit_tokens, "the choice knows what the tiers hold"
    assert min(by_cache.data_parallel.num_requests) > 20


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--dp-routing", "cache"), "--dp-routing cache: needs --data-parallel of at least 2"),
        (("--data-parallel", "2", "--dp-routing", "best"), "allowed are vllm and cache"),
    ],
    ids=["one rank", "no such routing"],
)
def test_options_that_mean_nothing_are_refused(tmp_path, options, says):
    result = invoke("replay", "--workload", "4:200:100:1", *options, "--out", str(tmp_path / "o"))
    assert result.exit_code == 2
    assert says in result.output
