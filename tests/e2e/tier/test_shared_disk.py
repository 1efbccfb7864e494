# SPDX-License-Identifier: Apache-2.0
"""Engines over one disk, as the data-parallel ranks of a node are: each finds what others write."""

from __future__ import annotations

import pytest

from tests.e2e.core.workload import Workload
from tests.e2e.tier.test_disk import Start, answered, files, seeded, settle, start
from tests.e2e.tier.test_faults import BOUNDARY, CELL, PROMPT, answer
from tests.e2e.tier.test_random_traffic import small_units, with_resets
from tests.e2e.tier.tier_engine import TierEngine
from vllm_ascend.tier.disk import threads

__all__ = ["Start", "seeded", "small_units", "start"]

FULL_GIB = 0.002


@pytest.fixture(autouse=True)
def nobody_looks_by_himself(monkeypatch):
    monkeypatch.setattr(threads, "_LOOK_EVERY_S", 3600.0)


def look(*engines: TierEngine) -> None:
    """Let engines look what others have done."""
    for engine in engines:
        settle(engine)
        engine.index.disk.work.look()
        settle(engine)


def fill(engine: TierEngine, first: int = 0) -> None:
    for number in range(first, first + 12):
        answered(engine, f"{number}", [number, *range(500, 780)])


def num_bytes(folder) -> int:
    return sum(path.stat().st_size for path in files(folder))


def test_a_session_that_moves_finds_its_rows_there(start):
    first, second = start(), start()
    answered(first, "a")
    assert answer(second, "too early") == 0
    moved_to = start()
    answered(first, "b", [5, *PROMPT])
    look(moved_to)
    assert answer(moved_to, "b", [5, *PROMPT]) == BOUNDARY
    assert moved_to.tier.counts.disk_read_bytes and not moved_to.tier.counts.disk_not_read
    look(first)
    assert first.scheduler.reset_prefix_cache()
    for key in list(first.index._places):
        first.index._remove(key)
    assert answer(first, "b again", [5, *PROMPT]) == BOUNDARY
    assert not first.tier.counts.disk_not_read, "it knows where the other has put them"


def test_nobody_has_to_be_told_to_look(start, monkeypatch):
    monkeypatch.setattr(threads, "_LOOK_EVERY_S", 0.01)
    first, second = start(), start()
    answered(first, "a")
    for _ in range(6000):
        changes = second.index.disk._changes
        if sum(len(change.found) for change in changes) == first.index.disk.num_objects:
            break
        threads.time.sleep(0.01)
    assert answer(second, "a") == BOUNDARY, "also if it has run no step since"


def test_what_all_write_together_is_bounded_and_a_restart_of_all_loses_nothing(start, tmp_path):
    ranks = start(disk_gib=FULL_GIB), start(disk_gib=FULL_GIB)
    for number, rank in enumerate(ranks):
        fill(rank, 20 * number)
    for _ in range(3):
        look(*ranks)
    assert 0.7 * FULL_GIB * (1 << 30) < num_bytes(tmp_path) <= FULL_GIB * (1 << 30)
    assert len({rank.index.disk.used_bytes for rank in ranks}) == 1
    before = num_bytes(tmp_path)
    again = start(disk_gib=FULL_GIB), start(disk_gib=FULL_GIB)
    look(*again)
    assert num_bytes(tmp_path) == before == again[1].index.disk.used_bytes


def test_what_another_gives_up_is_not_looked_for(start):
    first, second = start(), start()
    answered(first, "a")
    look(second)
    for key in list(first.index.disk._index._generations):
        first.index.disk.forget(key)
    look(first, second)
    assert second.index.disk.num_objects == 0
    assert answer(second, "a") == 0 and second.tier.counts.loads == 0


def test_of_two_files_with_one_object_one_is_left(start, tmp_path):
    first, second = start(), start()
    answered(first, "a")
    answered(second, "a")
    assert len(files(tmp_path)) == 2 * first.index.disk.num_objects
    for _ in range(2):
        look(first, second)
    assert len(files(tmp_path)) == first.index.disk.num_objects == second.index.disk.num_objects


@pytest.mark.parametrize("who_resets", [0, 1])
def test_after_a_reset_nobody_reads_what_another_writes_but_it_is_counted(
    who_resets, start, tmp_path
):
    """It may have been written by an engine that was not reset yet: with the weights of before."""
    engines = start(), start()
    assert engines[who_resets].scheduler.reset_prefix_cache(reset_connector=True)
    answered(engines[0], "a")
    look(*engines)
    answered(engines[1], "other", [9, *PROMPT])
    look(*engines)
    assert all(engine.index.disk.used_bytes == num_bytes(tmp_path) for engine in engines)
    assert answer(engines[1], "a") == 0
    assert answer(engines[0], "other", [9, *PROMPT]) == 0
    assert not any(engine.tier.counts.loads for engine in engines)
    look(*engines)
    assert answer(start(), "a") == BOUNDARY, "an engine that starts trusts what is there"


def test_random_traffic_of_two_engines(start):
    engines = [start(gib=0.0008, disk_gib=0.004, room=1.3) for _ in range(2)]
    loads = 0
    for number in range(6):
        engine = engines[number % 2]
        Workload(engine, with_resets(engine, CELL.traffic), number % 3).run(60)
        look(*engines)
        engine.index.check_integrity()
        loads += engine.tier.counts.disk_read_bytes
    assert loads
