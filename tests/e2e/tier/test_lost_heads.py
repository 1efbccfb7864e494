# SPDX-License-Identifier: Apache-2.0
"""A shared store gives up the head of a prefix that an engine hits in its own cache."""

from __future__ import annotations

import pytest

from tests.e2e.tier.memory_client import MemoryPool
from tests.e2e.tier.test_faults import CELL, PROMPT, answer
from tests.e2e.tier.test_random_traffic import small_units
from tests.e2e.tier.test_shared_pool import engine, pool
from tests.e2e.tier.tier_engine import TierEngine
from vllm_ascend.tier.layout import ROWS

__all__ = ["pool", "small_units"]

HEAD = PROMPT[:163]


def ask_on(running: TierEngine, name: str, first: int) -> None:
    """Let a prompt go on behind the head; the store answers between any two steps."""
    running.add(name, [*HEAD, *[first] * 40], 6)
    while running.step():
        running.tier._thread.call(int).result()


def rows_of(pool: MemoryPool) -> list[str]:
    """Return the names of the objects with rows, in the order of a prompt."""
    return [name for name in pool.objects if name.split("-")[2].startswith(ROWS.hex())]


@pytest.mark.parametrize("num_lost", [0, 1, 4])
@pytest.mark.parametrize("most_checked", [1024, 3])
def test_who_still_has_a_lost_head_stores_it_again(
    num_lost, most_checked, pool, switch, monkeypatch
):
    monkeypatch.setattr("vllm_ascend.tier.remote_look_up._MOST_CHECKED", most_checked)
    switch(CELL.environment)
    first = engine(CELL, 4.0, 1)
    answer(first, "stores", HEAD)
    answer(first, "end", [1, 2, 3])
    lost = rows_of(pool)[:num_lost]
    for name in lost:
        del pool.objects[name]
    for number in range(6):
        ask_on(first, f"goes on {number}", 3 + number)
        assert first.hits[f"goes on {number}"] == 160, "in its own cache"
    answer(first, "end again", [1, 2, 4])
    assert all(name in pool.objects for name in lost)
    assert answer(engine(CELL, 4.0, 2), "elsewhere", [*HEAD, 9]) == 160
    first.drain()


def test_nothing_that_is_there_is_stored_again(pool, switch, monkeypatch):
    switch(CELL.environment)
    first = engine(CELL, 4.0, 1)
    answer(first, "stores", HEAD)
    answer(first, "end", [1, 2, 3])
    stored: list[str] = []
    put = MemoryPool.put
    monkeypatch.setattr(
        MemoryPool, "put", lambda self, name, data: stored.append(name) or put(self, name, data)
    )
    before = set(pool.objects)
    ask_on(first, "goes on", 3)
    answer(first, "end again", [1, 2, 4])
    assert stored and before.isdisjoint(stored)
