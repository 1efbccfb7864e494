# SPDX-License-Identifier: Apache-2.0
"""Several engines on one store: rows of the others are right, and so is what fails."""

from __future__ import annotations

import random
from zlib import crc32

import pytest

from tests.e2e.core.configurations import Configuration
from tests.e2e.core.workload import Workload
from tests.e2e.tier.memory_client import MemoryClient, MemoryPool
from tests.e2e.tier.test_random_traffic import CELLS, small_units, with_resets
from tests.e2e.tier.tier_engine import TierEngine, transfer_config
from vllm_ascend.tier import backends
from vllm_ascend.tier.store_thread import StoreThread

__all__ = ["small_units"]


@pytest.fixture
def pool(monkeypatch) -> MemoryPool:
    # Engines that share names start their chains of hashes alike.
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    shared = MemoryPool(seed=1)
    monkeypatch.setattr(backends, "connect", lambda *args, **kwargs: MemoryClient(shared))
    return shared


def engine(configuration: Configuration, room: float, seed: int, **extra) -> TierEngine:
    transfer = transfer_config(
        backend="mooncake", pool="p", mooncake={"master_server_address": "memory:1"}, **extra
    )
    oracle = configuration.oracle(seed)
    return TierEngine(configuration.layout, configuration.options(room), transfer, oracle)


def run_engines(configuration: Configuration, switch, num_engines: int, num_steps: int) -> list:
    """Run the same traffic on one engine after the other, in pools of several sizes."""
    switch(configuration.environment)
    seed = crc32(str(configuration).encode())
    engines = []
    for number in range(num_engines):
        engines.append(engine(configuration, (1.3, 4.0, 1.2)[number], seed))
        Workload(engines[-1], with_resets(engines[-1], configuration.traffic), seed).run(num_steps)
    return engines


@pytest.mark.parametrize("configuration", CELLS, ids=str)
def test_what_another_engine_has_stored_is_right(configuration, pool, switch):
    first, second = run_engines(configuration, switch, 2, num_steps=120)
    assert second.tier.counts.hit_tokens > 0
    assert first.tier.counts.failed_loads == second.tier.counts.failed_loads == 0


@pytest.mark.parametrize("configuration", CELLS[:4], ids=str)
def test_objects_that_vanish_or_change_are_computed_instead(configuration, pool, switch):
    pool.vanishes, pool.flips = 0.01, 0.01
    engines = run_engines(configuration, switch, 3, num_steps=120)
    failed = sum(engine.tier.counts.failed_loads for engine in engines)
    assert failed, "nothing failed, so it proves nothing"
    assert sum(engine.tier.counts.loads for engine in engines) > failed


def test_a_small_store_gives_objects_up_at_any_time(pool, switch):
    pool.capacity = 60
    run_engines(CELLS[0], switch, 3, num_steps=120)


@pytest.mark.parametrize("configuration", CELLS[:4], ids=str)
def test_answers_that_come_some_steps_later_are_as_right(configuration, pool, switch, monkeypatch):
    has_ended, chance, late = StoreThread.has_ended, random.Random(0), []

    def often_late(self, call, seconds=None):
        if seconds is None and chance.random() < 0.6:
            late.append(call)
            return False
        return has_ended(self, call, seconds)

    monkeypatch.setattr(StoreThread, "has_ended", often_late)
    monkeypatch.setattr("vllm_ascend.tier.remote_look_up._FRESH_S", 0.0)
    first, second = run_engines(configuration, switch, 2, num_steps=120)
    assert late and second.tier.counts.hit_tokens > 0
    assert first.tier.counts.failed_loads == second.tier.counts.failed_loads == 0
