# SPDX-License-Identifier: Apache-2.0
"""What a tier brings to chats that are far more than it holds."""

from __future__ import annotations

import json
import random
from collections import deque
from pathlib import Path

from tests.e2e.replay.in_process import invoke

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
    memory = ("--kv-gib", "1", "--tier-gib", "1")
    result = invoke(
        *("replay", "--workload", str(trace), *options, *memory, "--out", str(tmp_path / "out"))
    )
    assert result.exit_code == 0, result.output
    (workload,) = json.loads((tmp_path / "out" / "report.json").read_text())["workloads"]
    (run,) = workload["runs"]
    assert run["tier"]["num_loads"] > 50
    assert run["hit_rate_percent"] > 0.96 * workload["bounds"]["granule_128"]
