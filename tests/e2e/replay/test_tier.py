# SPDX-License-Identifier: Apache-2.0
"""A tier below the KV cache in a replay: what it brings to chats, and that it is verified."""

from __future__ import annotations

import json
import random
from collections import deque
from pathlib import Path

import pytest

from tests.e2e.replay.in_process import invoke
from tests.e2e.replay.test_violations import make_job
from vllm_ascend.tier.host_index import HostIndex
from vllm_ascend_evaluation.replay.runs.child import run_job
from vllm_ascend_evaluation.replay.sources import WorkloadSource

# Of a Mooncake trace: prompts are equal up to whole blocks of so many tokens.
_TRACE_BLOCK = 512


def write_chats(path: Path, *, num_chats: int, num_turns: int, num_live: int) -> None:
    """Write a trace of chats in turn. A turn leaves the one before shortly before its end."""
    rng = random.Random(1)
    waiting = deque((chat, rng.randrange(4000, 8000), 1) for chat in range(num_chats))
    live = deque(waiting.popleft() for _ in range(num_live))
    lines: list[str] = []
    while live:
        chat, num_tokens, turn = live.popleft()
        hashes = [chat * 1000 + block for block in range(num_tokens // _TRACE_BLOCK)]
        if num_tokens % _TRACE_BLOCK:
            hashes.append(num_chats * 1000 + len(lines))
        request = {
            "timestamp": len(lines),
            "input_length": num_tokens,
            "output_length": 16,
            "hash_ids": hashes,
        }
        lines.append(json.dumps(request))
        if turn < num_turns:
            live.append((chat, num_tokens + rng.randrange(300, 900), turn + 1))
        elif waiting:
            live.append(waiting.popleft())
    path.write_text("\n".join(lines))


def test_a_full_tier_keeps_where_the_next_turns_go_on(tmp_path):
    trace = tmp_path / "chats.jsonl"
    write_chats(trace, num_chats=60, num_turns=5, num_live=16)
    options = ("--variant", "best", "--concurrency", "4", "--max-model-len", "16384")
    memory = ("--kv-gib", "1", "--tier-gib", "1", "--verify")
    result = invoke(
        *("replay", "--workload", str(trace), *options, *memory, "--out", str(tmp_path / "out"))
    )
    assert result.exit_code == 0, result.output
    (workload,) = json.loads((tmp_path / "out" / "report.json").read_text())["workloads"]
    (run,) = workload["runs"]
    assert run["tier"]["num_loads"] > 50
    assert run["hit_rate_percent"] > 0.96 * workload["bounds"]["granule_128"]


@pytest.mark.parametrize("num_speculative_tokens", [0, 3])
@pytest.mark.parametrize("is_planted", [False, True])
def test_what_is_loaded_is_verified(monkeypatch, num_speculative_tokens, is_planted):
    """Planted: the first two objects of a load are exchanged."""
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", "best")
    use = HostIndex.use

    def exchanged(index, keys):
        first, second, *others = use(index, keys)
        return [second, first, *others]

    if is_planted:
        monkeypatch.setattr(HostIndex, "use", exchanged)
    job = make_job(
        variant="best",
        block_size=128,
        kv_memory_bytes=1 << 29,
        tier_gib=2,
        workload=WorkloadSource("12x2:9000:200:4", concurrency=2),
        num_speculative_tokens=num_speculative_tokens,
    )
    result = run_job(job)
    assert result.tier is not None
    assert bool(result.violations) == is_planted
    assert bool(result.tier.num_loads) != is_planted, "the run ends in the step of the first load"
