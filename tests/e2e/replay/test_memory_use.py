# SPDX-License-Identifier: Apache-2.0
"""Where memory goes in a replay: every block is counted once, and every hit that was lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.replay.in_process import invoke
from tests.e2e.replay.test_tier import write_chats
from vllm_ascend_evaluation.replay.memory_use import NUM_PURPOSES


def replay(tmp_path: Path, *options: str) -> dict:
    """Replay chats in little memory; return the workload's report."""
    trace = tmp_path / "chats.jsonl"
    write_chats(trace, num_chats=24, num_turns=5, num_live=12)
    sizes = ("--concurrency", "8", "--max-model-len", "16384")
    out = tmp_path / "out"
    result = invoke("replay", "--workload", str(trace), *sizes, *options, "--out", str(out))
    assert result.exit_code == 0, result.output
    report = json.loads((out / "report.json").read_text())
    (workload,) = report["workloads"]
    return {**workload, "printed": result.output}


@pytest.mark.parametrize(("variant", "kv_gib"), [("best", "0.7"), ("upstream-like", "4.6")])
def test_blocks_are_counted_once_and_hits_are_there_or_lost(tmp_path, variant, kv_gib):
    workload = replay(tmp_path, "--variant", variant, "--kv-gib", kv_gib, "--memory-use")
    (run,) = workload["runs"]
    use = run["memory"]
    blocks = list(use.values())[:NUM_PURPOSES]
    assert abs(sum(blocks) - (run["num_blocks"] - 1)) < 1e-6  # -1: the null block
    assert 0 < use["num_waited"] <= run["num_requests"]
    lost = (use["no_tail_tokens"] or 0) + use["no_rows_tokens"]
    most = workload["bounds"]["granule_128"] / 100 * run["prompt_tokens"]
    # The bound has prompts in flight as well: they are neither hit nor lost.
    assert 0.9 * most < run["hit_tokens"] + lost <= most + 1
    assert 0 < use["rest_rates"]["LRU"] <= use["rest_rates"]["Belady (optimal)"]
    assert "lost: no rows" in workload["printed"]
    is_best = variant == "best"
    assert (use["no_tail_tokens"] is not None) is is_best
    assert (use["spares"] > 0) is (use["kept_tails"] > 0) is (use["fragments"] > 0) is is_best


def test_nobody_looks_who_is_not_asked_to(tmp_path):
    workload = replay(tmp_path, "--variant", "best", "--requests", "20", "--kv-gib", "0.7")
    assert workload["runs"][0]["memory"] is None
    assert "lost:" not in workload["printed"]
