# SPDX-License-Identifier: Apache-2.0
"""A store that does not answer look-ups: who waits for it, how long, and what is left of that.

Nothing here depends on time but for what is to be late: a step that waited would never end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.e2e.tier.memory_client import MemoryClient
from tests.e2e.tier.test_faults import BOUNDARY, CELL, PROMPT, answer, two
from tests.e2e.tier.test_random_traffic import small_units
from tests.e2e.tier.test_shared_pool import engine, pool

__all__ = ["pool", "small_units", "two"]


class Store:
    """Hangs until it is told to answer; counts what it is asked."""

    def __init__(self) -> None:
        self.answers, self.is_asked = threading.Event(), threading.Event()
        self.num_asked = 0


@pytest.fixture
def store(two, monkeypatch) -> Iterator[Store]:
    hanging, is_there = Store(), MemoryClient.batch_is_exist

    def hang(self, names):
        hanging.num_asked += 1
        hanging.is_asked.set()
        hanging.answers.wait(300)
        return is_there(self, names)

    monkeypatch.setattr(MemoryClient, "batch_is_exist", hang)
    two[1].tier._thread.grace_s = 0.0
    yield hanging
    hanging.answers.set()


def ask(running, name: str, store: Store) -> None:
    """Send a request, and step until the store has been asked for it."""
    running.add(name, PROMPT, 4)
    running.step()
    assert store.is_asked.wait(300)


def let_answer(running, store: Store) -> None:
    """Let the store answer, and wait until it has."""
    store.answers.set()
    running.tier._thread.call(int).result()


def be_late_from_now_on(running) -> None:
    """Nothing is waited for any longer."""
    running.tier._look_ups._most_seconds = 0.0


def test_a_request_waits_for_the_answer_and_others_run_meanwhile(two, store):
    second = two[1]
    second.add("short", [1, 2, 3], 40)  # of no unit: there is nothing to be asked
    second.add("asks", PROMPT, 4)
    for _ in range(10):
        second.step()
    assert store.is_asked.wait(300)
    assert len(second.outputs["short"]) >= 9 and not second.outputs["asks"]
    assert store.num_asked == 1, "once for a request, however many steps it waits"
    let_answer(second, store)
    second.run()
    assert second.hits["asks"] == BOUNDARY


def test_an_answer_serves_until_the_request_gets_its_blocks(two, store):
    second = two[1]
    store.answers.set()
    assert second.tier.look_up(second.add("asks", PROMPT, 4), 0) == (None, False)
    second.tier._thread.call(int).result()
    asked = store.num_asked
    request = second.requests["asks"]
    for num_local in (0, 0, 160, 0):
        told = second.tier.look_up(request, num_local)
        assert told == (BOUNDARY - num_local, True)
    assert second.tier.look_up(request, BOUNDARY) == (0, False), "no more than is here"
    assert second.tier._thread.call(lambda: store.num_asked).result() == asked


def test_one_late_answer_and_the_tier_is_left_alone(two, store):
    second = two[1]
    ask(second, "late", store)
    be_late_from_now_on(second)
    second.run()
    assert second.hits["late"] == 0 and second.tier.counts.pauses == 1
    assert answer(second, "next", [7, *PROMPT]) == 0
    assert store.num_asked == 1, "nobody asks it meanwhile"


def test_a_call_that_hangs_is_told_like_an_answer_that_is_late(two, store):
    second = two[1]
    second.tier._thread._most_seconds = 0.0
    ask(second, "waits", store)
    second.run()
    assert second.hits["waits"] == 0 and second.tier.counts.pauses == 1


def test_a_store_that_still_hangs_after_the_pause_is_left_alone_further(two, store, monkeypatch):
    monkeypatch.setattr("vllm_ascend.tier.scheduler_side._PAUSE_S", 0.0)
    second = two[1]
    second.tier._thread._most_seconds = 0.0
    ask(second, "late", store)
    be_late_from_now_on(second)
    second.run()
    assert answer(second, "next", [7, *PROMPT]) == 0
    assert store.num_asked == 1
    second.tier._thread._most_seconds = second.tier._look_ups._most_seconds = 300.0
    let_answer(second, store)
    assert second.scheduler.reset_prefix_cache()
    assert answer(second, "later") == BOUNDARY


def test_nothing_is_left_of_a_request_that_goes_before_the_answer(two, store):
    second = two[1]
    ask(second, "goes", store)
    second.abort(["goes"])
    second.run()
    assert second.tier._look_ups.names() == []
    let_answer(second, store)
    second.drain()


def test_an_answer_that_is_older_than_a_reset_is_not_taken(two, store, pool):
    second = two[1]
    ask(second, "asks", store)
    reset = threading.Thread(target=second.tier.reset)
    reset.start()
    let_answer(second, store)
    reset.join()
    assert not pool.objects
    second.run()
    assert second.hits["asks"] == 0 and second.tier.counts.loads == 0


def test_a_reset_of_a_store_that_hangs_ends_and_nothing_of_before_is_hit(two, store, pool):
    second = two[1]
    second.tier._reset._most_seconds = 0.0
    ask(second, "asks", store)
    assert second.scheduler.reset_prefix_cache(reset_connector=True)
    assert second.tier.counts.pauses == 1 and pool.objects
    second.run()
    assert second.hits["asks"] == 0
    let_answer(second, store)
    assert not pool.objects, "it is removed when the store answers"


def test_what_was_stored_since_the_store_was_asked_is_not_forgotten(pool, switch):
    switch(CELL.environment)
    index = engine(CELL, 4.0, 1).index
    asked_at = index.now
    [answered] = index.contains([b"rx"])
    index.reserve([b"rx"], 1)
    index.note([b"rx"], [answered], asked_at)
    assert index.is_known(b"rx")
    index.note([b"rx"], [False], index.now)
    assert not index.is_known(b"rx") and index.take_gone().keys == [b"rx"]
