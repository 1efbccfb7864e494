# SPDX-License-Identifier: Apache-2.0
"""Prefill in one engine, decode in another: the answers are those of one engine that does both."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.connectors import producer
from tests.e2e.connectors.disaggregation import (
    BEST,
    DSV4,
    ask,
    assert_nothing_leaked,
    decode,
    instance,
    prefill,
)
from tests.e2e.models import workloads
from tests.e2e.models.engines import Answer, engine
from vllm_ascend.prefix_cache_config import child_environment

_PREFIX = workloads.fresh(700, seed=0)
# Around granules and blocks: where prompts end, and where they leave a prefix.
PROMPTS = [
    _PREFIX,
    *workloads.diverging(_PREFIX, (385, 513, 640)),
    *(workloads.fresh(num_tokens, seed=num_tokens) for num_tokens in (5, 128, 129, 130, 257)),
]
TWENTY = [workloads.fresh(60 + 13 * seed, seed) for seed in range(20)]
_START_S = 300.0


@pytest.fixture(scope="module")
def right(deepseek) -> list[Answer]:
    """What one engine answers, without a cache."""
    with engine(deepseek, DSV4, block_size=32, enable_prefix_caching=False) as running:
        return running.ask([*PROMPTS, *TWENTY, *producer.PROMPTS], max_tokens=5)


@pytest.fixture(scope="module")
def killed(deepseek, tmp_path_factory) -> Iterator[tuple[subprocess.Popen, Path]]:
    """A producer that is handing requests over, with its folder. It is up when a test asks."""
    folder = tmp_path_factory.mktemp("killed")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.connectors.producer", str(deepseek), str(folder), "32"],
        env=child_environment({}),
        cwd=Path(__file__).parents[3],
        stdout=(folder / "log").open("w"),
        stderr=subprocess.STDOUT,
    )
    yield process, folder
    process.kill()
    process.wait()


@pytest.mark.parametrize("block_size", [128, 32])
def test_answers_are_those_of_one_engine(killed, deepseek, right, tmp_path, block_size):
    """``killed`` starts its process meanwhile."""
    with instance(deepseek, BEST, tmp_path, "kv_producer", block_size=block_size) as running:
        params = [
            handed
            for index, prompt in enumerate(PROMPTS)
            for handed in prefill(running, [prompt], index)
        ]
        hits = running.scheduler.kv_cache_manager.coordinator.stats.hit_tokens
        assert sum(hits) == 384 + 512 + 640, "hits end inside blocks on the prefill side"
        assert_nothing_leaked(running)
    with instance(deepseek, BEST, tmp_path, "kv_consumer", block_size=block_size) as running:
        answers = decode(running, PROMPTS, params, max_tokens=5)
        # Nobody has handed these over: they hit what is cached here, inside blocks.
        again = decode(running, PROMPTS, [{}] * len(PROMPTS), max_tokens=5)
        assert_nothing_leaked(running)
    for answer, other, prompt, handed in zip(answers, right, PROMPTS, params, strict=False):
        assert answer.equals(other)
        # Later releases tell of the hit on the prefill side instead.
        told = handed.get("remote_prefill_cached_tokens", len(prompt) - 1)
        assert answer.num_cached_tokens == told
    for answer, other in zip(again, right, strict=False):
        assert answer.equals(other)
    assert any(answer.num_cached_tokens for answer in again)


def test_twenty_requests_at_once(deepseek, right, tmp_path):
    with instance(deepseek, BEST, tmp_path, "kv_producer", block_size=32) as running:
        params = prefill(running, TWENTY)
        assert_nothing_leaked(running)
    with instance(deepseek, BEST, tmp_path, "kv_consumer", block_size=32) as running:
        answers = decode(running, TWENTY, params, max_tokens=5)
        assert_nothing_leaked(running)
    for answer, other in zip(answers, right[len(PROMPTS) :], strict=False):
        assert answer.equals(other)


def test_unequal_block_sizes_are_refused(deepseek, tmp_path, caplog):
    with instance(deepseek, BEST, tmp_path, "kv_producer", block_size=128) as running:
        params = prefill(running, PROMPTS[4:6])
    with instance(deepseek, BEST, tmp_path, "kv_consumer", block_size=32) as running:
        outputs = ask(running, PROMPTS[4:6], params, max_tokens=5)
        assert [output.outputs[0].finish_reason for output in outputs] == ["error", "error"]
        assert_nothing_leaked(running)
    assert "KV transfer refused" in caplog.text
    assert "block_size 32 here, 128 there" in caplog.text
    assert "group 0 (compressed 4:1) tokens_per_block 128 here, 512 there" in caplog.text


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_producer_killed_in_mid_transfer(killed, deepseek, right, policy):
    """One request was handed over whole, one in part, the others not at all."""
    process, folder = killed
    kill_in_mid_transfer(process, folder)
    params = [{"do_remote_prefill": True, "name": f"r{index}"} for index in range(4)]
    with instance(
        deepseek,
        BEST,
        folder,
        "kv_consumer",
        policy=policy,
        extra={"timeout_s": 1.0},
        block_size=32,
    ) as running:
        outputs = ask(running, producer.PROMPTS, params, max_tokens=5)
        # Whoever comes later is served.
        later = running.ask(producer.PROMPTS[:2], max_tokens=5)
        assert_nothing_leaked(running)
    expected = [list(answer.tokens) for answer in right[-4:]]
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    reasons = [output.outputs[0].finish_reason for output in outputs]
    if policy == "fail":
        assert reasons == ["length", "error", "error", "error"]
        assert tokens == [expected[0], [], [], []]
    else:
        assert reasons == ["length"] * 4
        assert tokens == expected
    assert [list(answer.tokens) for answer in later] == expected[:2]


def kill_in_mid_transfer(process: subprocess.Popen, folder: Path) -> None:
    """Kill the producer while a file of its second request is half-written."""
    deadline = time.monotonic() + _START_S
    while process.poll() is None and not list(folder.glob("r1/*.pt")):
        assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
        time.sleep(0.1)
    if process.poll() is None:
        process.kill()
        process.wait()
    assert process.returncode == -9, (folder / "log").read_text()[-2000:]
    assert (folder / "r0" / "complete").exists()
    assert not (folder / "r1" / "complete").exists()
