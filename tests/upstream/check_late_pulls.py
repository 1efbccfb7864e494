# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py): pulls of blocks that the prefill side has let go.

What stands in for hosts and RDMA is in :mod:`tests.upstream.mooncake_instances`.
"""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.e2e.core.configurations import Configuration
from tests.e2e.core.conftest import switch  # noqa: F401
from tests.e2e.core.engine import Engine
from tests.upstream import mooncake_instances
from tests.upstream.fixtures import caplog_of_vllm, without_npu  # noqa: F401
from tests.upstream.mooncake_instances import Instance, decode, prefill
from vllm_ascend.distributed.kv_transfer.kv_p2p import (  # type: ignore[import-not-found]
    mooncake_hybrid_connector,
)
from vllm_ascend.kv_transfer import held_blocks

TRANSFER = mooncake_instances.CopyingEngine()
mooncake_instances.stand_in_for_hosts(mooncake_hybrid_connector, TRANSFER)

# Of the two releases; each reads one of them.
TIME_LIMITS = ("VLLM_NIXL_ABORT_REQUEST_TIMEOUT", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT")


def cell(switches: str = "best") -> Configuration:
    return Configuration.named("dsv4-rows", "plain", switches)


def prompts(*names: str) -> dict[str, list[int]]:
    """Return prompts that share no prefix."""
    return {name: random.Random(name).choices(range(50), k=270) for name in names}


@pytest.fixture(autouse=True)
def clean(without_npu, monkeypatch):
    TRANSFER.pulls_left = TRANSFER.meanwhile = None
    set_time_limit(monkeypatch, 480)


def set_time_limit(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    for name in TIME_LIMITS:
        monkeypatch.setenv(name, str(seconds))


def let_go(monkeypatch: pytest.MonkeyPatch, producer: Instance) -> None:
    """Let the prefill side give up all that it holds, and fill its pool with other rows."""
    set_time_limit(monkeypatch, 0)
    while producer.scheduler.requests:
        producer.step()
    for index in range(30):
        prefill(producer, prompts(f"other{index}"))
    while producer.scheduler.requests:
        producer.step()
    set_time_limit(monkeypatch, 480)


def alone(configuration: Configuration, asked: dict[str, list[int]]) -> dict[str, list[int]]:
    """What one instance answers that does both."""
    engine = Engine(configuration.layout, configuration.options(4.0), configuration.oracle(0))
    for name, prompt in asked.items():
        engine.add(name, list(prompt), 8)
    engine.run()
    return engine.outputs


class Pair:
    """A prefill side with little memory, and a decode side."""

    def __init__(self, configuration: Configuration, policy: str = "fail") -> None:
        port = mooncake_instances.free_port()
        self.producer = Instance(configuration, "kv_producer", port, room=3.0)
        self.consumer = Instance(configuration, "kv_consumer", port, policy=policy)

    def drain(self) -> None:
        """Check that nothing is left on either side."""
        self.consumer.drain()
        self.producer.drain()


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("switches", ["best", "retention-unset"])
def test_rows_that_were_let_go_are_not_used(switch, monkeypatch, switches, when, policy):
    configuration = cell(switches)
    switch(configuration.environment)
    pair = Pair(configuration, policy)
    asked = prompts("late")
    params = prefill(pair.producer, asked)
    if when == "before":
        let_go(monkeypatch, pair.producer)
    else:
        TRANSFER.meanwhile = lambda: let_go(monkeypatch, pair.producer)
    answers = decode(pair.consumer, asked, params)
    assert answers == ({"late": []} if policy == "fail" else alone(configuration, asked))
    in_time = prompts("in time")
    assert decode(pair.consumer, in_time, prefill(pair.producer, in_time)) == alone(
        configuration, in_time
    )
    pair.drain()


def test_a_prefill_side_that_was_restarted_holds_nothing(switch, caplog_of_vllm):
    configuration = cell()
    switch(configuration.environment)
    pair = Pair(configuration)
    asked = prompts("lost")
    params = prefill(pair.producer, asked)
    restarted = mooncake_instances.free_port()
    Instance(configuration, "kv_producer", restarted)
    params["lost"]["remote_port"] = restarted
    assert decode(pair.consumer, asked, params) == {"lost": []}
    assert "no longer holds the blocks of request lost" in caplog_of_vllm.text
    pair.consumer.drain()


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_prefill_side_that_is_gone_is_not_waited_for(switch, monkeypatch, policy):
    """In both releases the thread that pulls waited for ever after the first such request."""
    monkeypatch.setattr(held_blocks, "PATIENCE_S", 0.3)
    configuration = cell()
    switch(configuration.environment)
    pair = Pair(configuration, policy)
    worker = pair.consumer.worker.connector.connector_worker
    worker.kv_recv_thread.timeout = 0.1  # seconds
    asked = prompts("one", "two", "three")
    params = prefill(pair.producer, asked)
    nobody = mooncake_instances.free_port()
    gone = {name: {**told, "remote_port": nobody} for name, told in params.items()}
    answers = decode(pair.consumer, asked, gone)
    right = {name: [] for name in asked} if policy == "fail" else alone(configuration, asked)
    assert answers == right
    pair.consumer.drain()


def test_nothing_is_asked_where_nothing_is_pulled():
    """The decode side has the prompt already."""
    told = {"remote_host": "127.0.0.1", "remote_handshake_port": mooncake_instances.free_port()}
    told |= {"remote_request_id": "has all", "remote_engine_id": "gone"}
    request = {**told, "local_block_ids": [], "remote_block_ids": ([1], [2])}
    thread = mooncake_hybrid_connector.KVCacheRecvingThread
    thread._transfer_kv_cache_all_groups(object.__new__(thread), request)


# One side without the patch


def unpatched(function: Callable) -> Callable:
    """Return what a patch has wrapped."""
    return function.__kwdefaults__["original"]


def without_patches(monkeypatch: pytest.MonkeyPatch, owner: type, *names: str) -> None:
    for name in names:
        monkeypatch.setattr(owner, name, unpatched(vars(owner)[name]))


def test_a_prefill_side_without_the_patch(switch, monkeypatch, caplog_of_vllm):
    thread = mooncake_hybrid_connector.KVCacheSendingThread
    without_patches(monkeypatch, thread, "__init__", "run_busy_loop")
    answered_as_by_one_instance(switch)
    assert "cannot say whether it still holds" in caplog_of_vllm.text


def test_a_decode_side_without_the_patch(switch, monkeypatch):
    thread = mooncake_hybrid_connector.KVCacheRecvingThread
    pulls = ("_transfer_kv_cache", "_transfer_kv_cache_all_groups")
    without_patches(monkeypatch, thread, "__init__", *pulls)
    added = "get_block_ids_with_load_errors"
    monkeypatch.delattr(mooncake_hybrid_connector.MooncakeConnector, added)
    answered_as_by_one_instance(switch)


def answered_as_by_one_instance(switch: Callable) -> None:
    configuration = cell()
    switch(configuration.environment)
    pair = Pair(configuration)
    asked = prompts("a", "b", "c")
    answers = decode(pair.consumer, asked, prefill(pair.producer, asked))
    assert answers == alone(configuration, asked)
    pair.drain()
