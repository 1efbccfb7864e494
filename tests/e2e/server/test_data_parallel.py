# SPDX-License-Identifier: Apache-2.0
"""Two ranks, a leader and a headless worker: every chat goes to the rank that has it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.server.faults import check_all_were_told, strike_under_load, until_gone
from tests.e2e.server.processes import shared_memory_of
from tests.e2e.server.server import (
    BEST,
    Server,
    cached,
    free_port,
    serve,
    tokens,
)
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

_ROUTING = {"VLLM_ASCEND_DP_ROUTING": "cache", "VLLM_SERVER_DEV_MODE": "1", "OMP_NUM_THREADS": "1"}
_NUM_CHATS, _NUM_TURNS = 10, 6
_RANK = "X-data-parallel-rank"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    make_tiny_model(folder)
    return folder


@contextlib.contextmanager
def two_ranks(
    model: Path, folder: Path, *options: str
) -> Iterator[tuple[Server, subprocess.Popen]]:
    """Start a leader and a headless worker, as on two nodes; return both."""
    port = str(free_port())
    shared = (
        *options,
        *("--data-parallel-size", "2", "--data-parallel-size-local", "1"),
        *("--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", port),
    )
    command = [
        *(str(Path(sys.executable).with_name("vllm")), "serve", str(model), "--headless"),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", "16384"),
        *("--block-size", "128", "--data-parallel-start-rank", "1", *shared),
    ]
    switches = {**BEST, **_ROUTING}
    with (folder / "worker.log").open("wb") as output:
        worker = subprocess.Popen(
            command,
            env=child_environment({"VLLM_CPU_KVCACHE_SPACE": "1", **switches}),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
        )
    try:
        with serve(model, folder / "leader.log", switches, *shared) as server:
            yield server, worker
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


class Chats:
    """Conversations whose prompts grow by their answers; several go on at once.

    Attributes:
        answers: Chat and turn -> the answer's token ids.
        num_cached: Hit tokens of all turns.
        num_tokens: Prompt tokens of all turns.
    """

    def __init__(self, server: Server, seed: int) -> None:
        self.server, self._seed = server, seed
        self.answers: dict[tuple[int, int], list[int]] = {}
        self.num_cached = self.num_tokens = 0
        shared = tokens(512, seed)
        self._prompts = [shared + tokens(200, seed + 1 + chat) for chat in range(_NUM_CHATS)]

    def run(self, *, by_name: bool = False) -> None:
        """Have every turn of all chats answered; a turn follows the one before.

        Args:
            by_name: The client names the rank of the first turn of every chat, one and the other.
        """
        order = random.Random(self._seed)
        # One after another: of two at once, either may compute what both begin with.
        for chat in range(_NUM_CHATS):
            self._turn(chat, 0, {_RANK: str(chat % 2)} if by_name else {})
        with ThreadPoolExecutor(4) as pool:
            for turn in range(1, _NUM_TURNS):
                chats = order.sample(range(_NUM_CHATS), _NUM_CHATS)
                list(pool.map(lambda chat, turn=turn: self._turn(chat, turn), chats))

    def _turn(self, chat: int, turn: int, headers: dict[str, str] | None = None) -> None:
        prompt = self._prompts[chat]
        body = self.server.body(prompt=prompt, max_tokens=3)
        url = f"{self.server.url}/v1/completions"
        answer = httpx.post(url, json=body, headers=headers, timeout=300).raise_for_status().json()
        said = answer["choices"][0]["token_ids"]
        self.answers[chat, turn] = said
        self.num_cached += cached(answer)
        self.num_tokens += len(prompt)
        self._prompts[chat] = prompt + said + tokens(150, self._seed * 1000 + chat * 100 + turn)


def metrics(text: str, name: str, **label: str) -> float:
    """Return a metric of ours, summed over all labels but one."""
    ((key, value),) = label.items()
    lines = re.findall(rf"^vllm_ascend:{name}{{(.*)}} (\S+)$", text, re.MULTILINE)
    return sum(float(number) for labels, number in lines if f'{key}="{value}"' in labels)


def test_predictions_are_the_ranks_hits(model: Path, tmp_path: Path) -> None:
    """420 requests to two API servers; in between caches are reset, and clients name ranks."""
    runs = []
    with two_ranks(model, tmp_path) as (server, _):
        for seed in range(1, 8):
            chats = Chats(server, seed)
            chats.run(by_name=seed > 4)
            runs.append(chats)
            if seed % 2:
                httpx.post(f"{server.url}/reset_prefix_cache").raise_for_status()
        text = server.get("/metrics")
        exact = sum(
            map(float, re.findall(r'dp_predictions_total{.*outcome="exact".*} (\S+)', text))
        )
        wrong = server.metric("vllm_ascend:dp_prediction_error_tokens_total")
        by_rank = re.findall(
            r"vllm_ascend:dp_hit_tokens_total{[^}]*engine=\"(\d)\"[^}]*} (\S+)",
            server.get("/metrics"),
        )
    assert (exact, wrong) == (len(runs) * _NUM_CHATS * _NUM_TURNS, 0)
    assert all(float(hits) for _, hits in by_rank), "both ranks are hit"
    with serve(model, tmp_path / "alone.log", BEST) as server:
        for chats in runs:
            alone = Chats(server, chats._seed)
            alone.run()
            assert chats.answers == alone.answers
            assert chats.num_cached >= 0.9 * alone.num_cached


def test_a_killed_rank_leaves_nobody_waiting(model: Path, tmp_path: Path) -> None:
    """vLLM takes no rank anew: the death of one is the end of the server."""
    with two_ranks(model, tmp_path) as (server, worker):
        shared_memory = shared_memory_of(server)
        endings = asyncio.run(
            strike_under_load(server, lambda: os.killpg(worker.pid, signal.SIGKILL))
        )
        until_gone(server, shared_memory)
    check_all_were_told(endings)
