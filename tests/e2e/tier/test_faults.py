# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between here and a store: the request is computed, right, and does not wait."""

from __future__ import annotations

import threading
import time

import pytest

from tests.e2e.tier.memory_client import MemoryClient, MemoryPool
from tests.e2e.tier.test_random_traffic import cell, small_units
from tests.e2e.tier.test_shared_pool import engine, pool
from tests.e2e.tier.tier_engine import TierEngine, transfer_config

__all__ = ["pool", "small_units"]

CELL = cell("dsv4-rows", "plain", "best")
PROMPT = list(range(100, 390))
BOUNDARY = 288  # the last multiple of 16 in front of its last token


def answer(running: TierEngine, name: str, prompt=PROMPT) -> int:
    """Answer a prompt; return the tokens that were not computed."""
    running.add(name, prompt, 4)
    while running.step():
        pass
    assert not running.scheduler.requests, "it waits for ever"
    return running.hits[name]


@pytest.fixture
def two(pool: MemoryPool, switch):
    """An engine that has stored the prompt's rows, and another one."""
    switch(CELL.environment)
    first, second = (engine(CELL, 4.0, seed) for seed in (1, 2))
    assert answer(first, "a") == 0
    _let_stores_end(first)
    return first, second


def _let_stores_end(running: TierEngine) -> None:
    answer(running, "end", [1, 2, 3])
    assert running.tier.is_idle()


def test_without_a_fault_another_engine_loads_all_but_the_end(two):
    assert answer(two[1], "b") == BOUNDARY


@pytest.mark.parametrize("change", ["gone", "torn", "changed", "short"])
def test_an_object_that_cannot_be_used_is_computed_and_stored_anew(change, two, pool):
    size = max(map(len, pool.objects.values()))
    for name, data in pool.objects.items():
        if len(data) == size:  # a tail
            torn, changed = bytes(64) + data[64:], data[:-1] + bytes([data[-1] ^ 1])
            bad = {"torn": torn, "changed": changed, "short": data[:100], "gone": data}
            pool.objects[name] = bad[change]
    pool.vanishes = float(change == "gone")
    assert answer(two[1], "b") == 0
    counts = two[1].tier.counts
    assert (counts.loads, counts.failed_loads) == (1, 1)
    _let_stores_end(two[1])
    pool.vanishes = 0.0
    assert answer(engine(CELL, 4.0, 3), "c") == BOUNDARY


def test_rows_of_another_layout_under_the_same_name_are_not_taken(two):
    two[1].worker.connector.worker_half._signature = b"another layout!!"
    answer(two[1], "b")
    assert two[1].tier.counts.failed_loads == 1
    assert two[1].worker.connector.worker_half.counts.unusable["foreign"] > 0


def test_a_store_that_hangs_delays_one_request_and_is_then_left_alone(two, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(MemoryClient, "batch_get_into", lambda *args: release.wait(300) or [])
    monkeypatch.setattr(two[1].worker.connector.worker_half, "_load_seconds", 0.2)
    started = time.monotonic()
    answer(two[1], "b")
    assert 0.2 <= time.monotonic() - started < 200
    assert two[1].tier.counts.failed_loads == 1
    answer(two[1], "c", [7, *PROMPT])
    assert two[1].tier.counts.loads == 1, "it is left alone for a while"
    release.set()


def test_a_dead_store_is_a_tier_that_has_nothing(two, pool):
    pool.is_dead = True
    assert answer(two[1], "b") == 0
    assert two[1].tier.counts.pauses == 1
    calls = pool.num_calls
    answer(two[1], "c", [7, *PROMPT])
    assert pool.num_calls == calls, "nobody asks while it is left alone"


def test_a_store_that_takes_nothing_is_tried_again(pool, switch, monkeypatch):
    switch(CELL.environment)
    first = engine(CELL, 4.0, 1)
    monkeypatch.setattr(
        MemoryClient, "batch_put_from", lambda self, names, *args: [-200] * len(names)
    )
    answer(first, "a")
    assert not pool.objects
    monkeypatch.undo()
    switch(CELL.environment)
    assert first.tier.is_idle()
    answer(first, "b", [7, *PROMPT])
    _let_stores_end(first)
    assert pool.objects


def test_rows_that_no_buffer_was_free_for_are_stored_in_a_later_step(pool, switch):
    switch(CELL.environment)
    first = engine(CELL, 4.0, 1)
    half = first.worker.connector.worker_half
    taken = [half._free_for_stores.popleft() for _ in range(2)]
    first.add("a", PROMPT, 60)
    for _ in range(10):
        first.step()
    assert not pool.objects
    half._free_for_stores.extend(taken)
    while first.step():
        pass
    assert sum(name.split("-")[2].startswith(b"r".hex()) for name in pool.objects) >= 18


def test_two_engines_may_store_the_same_rows(two, pool):
    before = dict(pool.objects)
    pool.get = lambda name: None  # the second cannot load, so it computes and stores
    answer(two[1], "b")
    _let_stores_end(two[1])
    assert {name: pool.objects[name] for name in before} == before


def host(switch, gib: float = 0.01, **extra) -> TierEngine:
    switch(CELL.environment)
    transfer = transfer_config(backend="host", gib=gib, **extra)
    return TierEngine(CELL.layout, CELL.options(4.0), transfer, CELL.oracle(1))


def test_a_full_memory_stores_what_it_can(switch):
    small = host(switch, gib=0.0002)
    for number in range(4):
        answer(small, f"a{number}", [number, *PROMPT])
    assert small.tier.counts.stored_units
    small.index.check_integrity()


def test_after_a_reset_nothing_of_before_is_hit(switch):
    running = host(switch)
    answer(running, "a")
    assert running.scheduler.reset_prefix_cache(reset_connector=True)
    assert answer(running, "b") == 0


def test_what_arrives_in_a_shared_store_behind_a_reset_is_not_hit(pool, switch, monkeypatch):
    switch(CELL.environment)
    release = threading.Event()
    monkeypatch.setattr("vllm_ascend.tier.shared_reset._ARRIVAL_S", 0.1)
    running = _still_storing(monkeypatch, lambda: release.wait(300))
    assert running.scheduler.reset_prefix_cache(reset_connector=True)
    release.set()
    _drain(running)
    assert pool.objects, "the rows of before have arrived"
    assert answer(running, "b") == 0
    _drain(running)
    answer(running, "end", [1, 2, 3])
    assert running.scheduler.reset_prefix_cache()
    assert answer(running, "c") == BOUNDARY, "it is used again"


def test_a_reset_waits_for_what_other_engines_would_find_behind_it(pool, switch, monkeypatch):
    switch(CELL.environment)
    first = _still_storing(monkeypatch, lambda: time.sleep(0.2))
    assert first.scheduler.reset_prefix_cache(reset_connector=True)
    _drain(first)
    assert not pool.objects
    assert answer(engine(CELL, 4.0, 2), "b") == 0


def test_a_store_that_does_not_answer_a_reset_is_left_alone_until_it_does(two, pool, monkeypatch):
    monkeypatch.setattr("vllm_ascend.tier.scheduler_side._PAUSE_S", 0.0)
    second = two[1]
    pool.is_dead = True
    assert second.scheduler.reset_prefix_cache(reset_connector=True)
    assert second.tier.counts.pauses == 1
    assert answer(second, "b") == 0
    assert second.tier.counts.pauses > 1, "it was asked again"
    pool.is_dead = False
    assert second.scheduler.reset_prefix_cache()
    assert answer(second, "c") == 0


def _still_storing(monkeypatch, wait) -> TierEngine:
    """Return an engine that has answered while its store waits before it takes anything."""
    put = MemoryClient.batch_put_from

    def put_late(*args):
        wait()
        return put(*args)

    monkeypatch.setattr(MemoryClient, "batch_put_from", put_late)
    monkeypatch.setattr("vllm_ascend.tier.worker_side._IN_TURNS", 16)
    running = engine(CELL, 4.0, 1)
    running.worker.connector.worker_half.waits_for_stores = False
    answer(running, "a")
    assert not running.tier.is_idle(), "it is being stored"
    return running


def _drain(running: TierEngine) -> None:
    """Wait until everything that the worker was told to store is stored."""
    running.worker.connector.worker_half._writer.submit(int).result()


def test_a_reset_of_the_local_cache_alone_leaves_the_tier(switch):
    running = host(switch)
    answer(running, "a")
    answer(running, "end", [1, 2, 3])
    assert running.scheduler.reset_prefix_cache()
    running.worker.lose_memory()  # as an engine that slept
    assert answer(running, "b") == BOUNDARY


def test_an_abort_while_it_loads_frees_the_blocks_when_the_load_has_ended(two, monkeypatch):
    get = MemoryClient.batch_get_into
    release = threading.Event()
    monkeypatch.setattr(
        MemoryClient, "batch_get_into", lambda *args: release.wait(300) and get(*args)
    )
    second = two[1]
    second.add("b", PROMPT, 4)
    second.step()
    second.abort(["b"])
    release.set()
    while second.step():
        pass
    assert not second.scheduler.requests
    assert (
        second.manager.block_pool.get_num_free_blocks()
        == second.manager.block_pool.num_gpu_blocks - 1
    )
    assert second.tier.is_idle()


def test_a_request_that_is_aborted_while_it_is_stored_leaves_whole_objects(
    pool, switch, monkeypatch
):
    """Its blocks are somebody else's before the store has the bytes."""
    switch(CELL.environment)
    first, second = (engine(CELL, 1.2, seed) for seed in (1, 2))
    first.worker.connector.worker_half.waits_for_stores = False
    put, release = MemoryClient.batch_put_from, threading.Event()
    monkeypatch.setattr(
        MemoryClient, "batch_put_from", lambda *args: release.wait(300) and put(*args)
    )
    first.add("a", PROMPT[:60], 60)  # of one step
    for _ in range(2):
        first.step()
    first.abort(["a"])
    assert not pool.objects and not first.tier.is_idle()
    for number in range(3):  # they write over its blocks
        answer(first, f"other{number}", [9 + number, *PROMPT])
    release.set()
    first.worker.connector.worker_half._writer.submit(int).result()
    _let_stores_end(first)
    assert answer(second, "b", PROMPT[:60]) == 48


def test_a_step_that_fails_stores_nothing(switch):
    running = host(switch)
    half = running.worker.connector.worker_half
    running.add("a", PROMPT, 4)
    output = running.scheduler.schedule()
    half.start(output.kv_connector_metadata)
    with pytest.raises(RuntimeError):
        try:
            raise RuntimeError("the forward pass")
        finally:
            half.end()
    report = half.take_report()
    assert not report.stored and report.not_stored
