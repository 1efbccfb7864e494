# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py): vllm-ascend's hybrid Mooncake connector.

What stands in for hosts and RDMA is in :mod:`tests.upstream.mooncake_instances`.
"""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

import random
import time

import pytest

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.e2e.core.configurations import (
    MODES,
    Configuration,
)
from tests.e2e.core.conftest import switch  # noqa: F401
from tests.e2e.core.engine import Engine
from tests.upstream import mooncake_instances
from tests.upstream.fixtures import caplog_of_vllm, without_npu  # noqa: F401
from tests.upstream.mooncake_instances import Instance, decode, prefill
from vllm_ascend.distributed.kv_transfer.kv_p2p import (  # type: ignore[import-not-found]
    mooncake_hybrid_connector,
)

TRANSFER = mooncake_instances.CopyingEngine()
mooncake_instances.stand_in_for_hosts(mooncake_hybrid_connector, TRANSFER)


def cell(
    case: str = "dsv4-rows", switches: str = "best", mode: str = MODES[0].name
) -> Configuration:
    return Configuration.named(case, mode, switches)


def prompts(num: int, longest: int = 280) -> dict[str, list[int]]:
    """Return prompts, some of which share a prefix; no two of equal length are equal."""
    rng = random.Random(0)
    prefix = [rng.randrange(50) for _ in range(longest)]
    return {
        f"p{index}": prefix[: rng.randrange(longest)]
        + [rng.randrange(50) for _ in range(rng.randrange(1, 40))]
        for index in range(num)
    }


@pytest.fixture(autouse=True)
def nothing_breaks(without_npu):
    TRANSFER.pulls_left = None


def alone(configuration: Configuration, asked: dict[str, list[int]]) -> dict[str, list[int]]:
    """What one instance answers that does both."""
    engine = Engine(configuration.layout, configuration.options(4.0), configuration.oracle(0))
    for name, prompt in asked.items():
        engine.add(name, list(prompt), 8)
    engine.run()
    return engine.outputs


@pytest.mark.parametrize("switches", ["best", "partial", "retention-unset"])
def test_twenty_requests_are_answered_as_by_one_instance(switch, switches):
    configuration = cell(switches=switches)
    switch(configuration.environment)
    asked = prompts(20)
    port = mooncake_instances.free_port()
    producer = Instance(configuration, "kv_producer", port)
    consumer = Instance(configuration, "kv_consumer", port)
    answers: dict[str, list[int]] = {}
    for names in (list(asked)[:4], list(asked)[4:]):  # the second round hits on both sides
        part = {name: asked[name] for name in names}
        answers |= decode(consumer, part, prefill(producer, part))
    assert answers == alone(configuration, asked)
    if switches != "retention-unset":
        assert any(hit % 64 for hit in producer.hits.values()), "no hit ended inside a block"
    consumer.drain()
    producer.drain()


@pytest.mark.parametrize("mode", ["plain", "async"])
@pytest.mark.parametrize("switches", ["best", "partial-sparse-0"])
def test_prompts_that_end_around_boundaries_are_answered_as_by_one_instance(switch, switches, mode):
    """Of sparse state, tables hold what is read behind a boundary, a token or some behind it."""
    configuration = cell(switches=switches, mode=mode)
    switch(configuration.environment)
    port = mooncake_instances.free_port()
    producer = Instance(configuration, "kv_producer", port, room=2.0)
    consumer = Instance(configuration, "kv_consumer", port, room=2.0)
    assert state_is_sparse(producer) and state_is_sparse(consumer)
    rng = random.Random(0)
    prefixes = [[rng.randrange(50) for _ in range(300)] for _ in range(4)]
    for turn in range(30):
        part = {}
        for index in range(3):
            length = max(rng.randrange(16, 288, 16) + rng.randrange(-1, 11), 2)
            part[f"{turn}-{index}"] = rng.choice(prefixes)[:length]
        assert decode(consumer, part, prefill(producer, part)) == alone(configuration, part)
    consumer.drain()
    producer.drain()


def bytes_pulled_by_turn(configuration: Configuration, num_turns: int = 5) -> list[int]:
    """Let both sides answer chats; return what the decode side pulled in each turn."""
    port = mooncake_instances.free_port()
    producer = Instance(configuration, "kv_producer", port)
    consumer = Instance(configuration, "kv_consumer", port)
    rng = random.Random(0)
    chats = {f"chat {index}": [rng.randrange(50) for _ in range(200)] for index in range(3)}
    pulled: list[int] = []
    for turn in range(num_turns):
        asked = {f"{name}, turn {turn}": prompt for name, prompt in chats.items()}
        before = TRANSFER.num_bytes
        answers = decode(consumer, asked, prefill(producer, asked))
        pulled.append(TRANSFER.num_bytes - before)
        assert answers == alone(configuration, asked)
        for (name, prompt), answer in zip(chats.items(), answers.values(), strict=True):
            # The template ends the prompt otherwise than it repeats it.
            asks = [rng.randrange(50) for _ in range(rng.randrange(4, 12))]
            chats[name] = [*prompt[:-2], *answer, *asks]
    consumer.drain()
    producer.drain()
    return pulled


@pytest.mark.parametrize("mode", ["plain", "async"])
@pytest.mark.parametrize("switches", ["best", "partial-sparse-0"])
def test_of_a_chat_the_decode_side_pulls_what_it_lacks(switch, monkeypatch, switches, mode):
    """Its rows are of earlier turns, pulled or computed; the tail of every prompt is pulled."""
    configuration = cell(switches=switches, mode=mode)
    switch(configuration.environment)
    lacking = bytes_pulled_by_turn(configuration)
    monkeypatch.setattr(mooncake_hybrid_connector.MooncakeConnector, "brings_tails", False)
    everything = bytes_pulled_by_turn(configuration)
    assert lacking[0] == everything[0]
    assert all(some < 0.6 * every for some, every in zip(lacking[1:], everything[1:], strict=True))


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_pull_that_fails_behind_local_rows(switch, policy):
    """The rows stay, and nobody goes on behind them without a tail."""
    configuration = cell()
    switch(configuration.environment)
    port = mooncake_instances.free_port()
    producer = Instance(configuration, "kv_producer", port)
    consumer = Instance(configuration, "kv_consumer", port, policy=policy)
    rng = random.Random(0)
    prefix = [rng.randrange(50) for _ in range(250)]
    for turn in range(4):
        asked = {f"{turn}-{i}": [*prefix, *(rng.randrange(50) for _ in range(9))] for i in range(3)}
        params = prefill(producer, asked)
        TRANSFER.pulls_left = turn % 2 or None
        answers, right = decode(consumer, asked, params), alone(configuration, asked)
        failed = 2 if turn % 2 and policy == "fail" else 0
        assert sum(answers[name] == [] for name in asked) == failed
        assert all(answers[name] in ([], right[name]) for name in asked)
    consumer.drain()
    producer.drain()


def state_is_sparse(instance: Instance) -> bool:
    plan = instance.scheduler.kv_cache_manager.coordinator.plan
    return any(map(plan.is_sparse, plan.specs))


def test_a_prompt_cached_but_for_its_last_token_is_computed(switch):
    """It is shortened by a token after the look-up, which a hit must not reach."""
    configuration = cell()
    switch(configuration.environment)
    rng = random.Random(1)
    prompt = [rng.randrange(50) for _ in range(129)]
    producer = Instance(configuration, "kv_producer", mooncake_instances.free_port())
    for name in ("first", "second"):
        prefill(producer, {name: prompt})
    assert 0 < producer.hits["second"] < 128


def test_unequal_block_sizes_are_refused(switch, caplog_of_vllm):
    port = mooncake_instances.free_port()
    asked = prompts(2)
    other = cell("dsv4-a3-32")
    switch(other.environment)
    producer = Instance(other, "kv_producer", port)
    params = prefill(producer, asked)
    configuration = cell()
    switch(configuration.environment)
    consumer = Instance(configuration, "kv_consumer", port)
    assert decode(consumer, asked, params) == {"p0": [], "p1": []}
    assert "KV transfer refused" in caplog_of_vllm.text
    assert "block_size 4 here, 32 there" in caplog_of_vllm.text
    consumer.drain()
    producer.drain()


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_producer_that_dies_in_mid_transfer(switch, policy):
    configuration = cell()
    switch(configuration.environment)
    asked = prompts(6)
    port = mooncake_instances.free_port()
    producer = Instance(configuration, "kv_producer", port)
    consumer = Instance(configuration, "kv_consumer", port, policy=policy)
    params = prefill(producer, asked)
    TRANSFER.pulls_left = 2
    answers = decode(consumer, asked, params)
    right = alone(configuration, asked)
    unharmed = [name for name in asked if answers[name] == right[name]]
    assert len(unharmed) == (2 if policy == "fail" else 6)
    assert all(answers[name] == [] for name in asked if name not in unharmed)
    consumer.drain()
    producer.drain()


def test_a_pull_that_is_done_at_once_is_not_forgotten(switch, monkeypatch):
    """vllm-ascend notes a request as one to wait for behind the start of its pull."""
    thread = mooncake_hybrid_connector.KVCacheRecvingThread
    start = thread.add_request

    def start_and_wait(self, **request) -> None:
        start(self, **request)
        time.sleep(0.2)

    monkeypatch.setattr(thread, "add_request", start_and_wait)
    configuration = cell()
    switch(configuration.environment)
    asked = prompts(3)
    port = mooncake_instances.free_port()
    producer = Instance(configuration, "kv_producer", port)
    consumer = Instance(configuration, "kv_consumer", port)
    answers = decode(consumer, asked, prefill(producer, asked))
    assert answers == alone(configuration, asked)
    consumer.drain()
    producer.drain()
