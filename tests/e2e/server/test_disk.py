# SPDX-License-Identifier: Apache-2.0
"""What a real ``vllm serve`` leaves on a disk is there after a crash, and for its other ranks."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import httpx

from tests.e2e.server.server import BEST, GRANULE, Server, cached, longest_hit, serve, tokens
from tests.e2e.server.test_data_parallel import two_ranks
from tests.e2e.server.test_tier import with_tier
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

PROMPT = tokens(4_000, seed=1)


def ask(server: Server, prompt: list[int], rank: int = 0) -> dict[str, Any]:
    """Have a rank continue a prompt."""
    url, headers = f"{server.url}/v1/completions", {"X-data-parallel-rank": str(rank)}
    body = server.body(prompt=prompt, max_tokens=4)
    return httpx.post(url, json=body, headers=headers, timeout=300).raise_for_status().json()


def wait_for_the_disk(server: Server) -> None:
    """Wait until nothing more is written."""
    before = -1.0
    while before != (written := server.metric("vllm_ascend:tier_disk_written_bytes_total")):
        before = written
        time.sleep(6)  # tails wait for 5
        ask(server, [1, 2, 3])  # counts come with a step
    assert written > 0


def test_a_chat_goes_on_after_a_crash(tmp_path):
    make_tiny_model(tmp_path / "model")
    (tmp_path / "disk").mkdir()
    disk = {"path": str(tmp_path / "disk"), "gib": 1}
    options = with_tier({"backend": "host", "gib": 0.25, "disk": disk})
    with serve(tmp_path / "model", tmp_path / "first.log", BEST, *options) as first:
        answer = first.complete(PROMPT, max_tokens=300)
        said = answer["choices"][0]["token_ids"]
        wait_for_the_disk(first)
        for process in first.processes():
            os.kill(process, signal.SIGKILL)
    turn = [*PROMPT, *said, *tokens(50, seed=2)]
    boundary = (len(PROMPT) + len(said) - 1) // GRANULE * GRANULE
    with serve(tmp_path / "model", tmp_path / "second.log", BEST, *options) as second:
        answer = second.post("/v1/completions", prompt=turn, max_tokens=4)
        assert cached(answer) == boundary
        second.post("/v1/completions", prompt=[5, *turn], max_tokens=4)
        assert second.metric("vllm_ascend:tier_failed_loads_total") == 0
        assert "which holds" in (tmp_path / "second.log").read_text()
    switches = {**BEST, "VLLM_ASCEND_PREFIX_CACHE_PROFILE": ""}
    with serve(tmp_path / "model", tmp_path / "plain.log", switches) as plain:
        expected = plain.complete(turn)["choices"][0]["token_ids"]
    assert answer["choices"][0]["token_ids"] == expected


def test_a_chat_that_moves_finds_its_rows_on_the_disk_of_all_ranks(tmp_path):
    make_tiny_model(tmp_path / "model")
    (tmp_path / "disk").mkdir()
    disk = {"path": str(tmp_path / "disk"), "gib": 1}
    options = with_tier({"backend": "host", "gib": 0.25, "disk": disk})
    with two_ranks(tmp_path / "model", tmp_path, *options) as (server, _):
        first = ask(server, PROMPT, rank=0)
        wait_for_the_disk(server)
        moved = ask(server, PROMPT, rank=1)
        assert server.metric("vllm_ascend:tier_failed_loads_total") == 0
    assert (cached(first), cached(moved)) == (0, longest_hit(len(PROMPT)))
    assert moved["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]
