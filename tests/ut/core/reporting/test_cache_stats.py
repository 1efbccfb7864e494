# SPDX-License-Identifier: Apache-2.0
"""What is taken is what is new, and adds up however often it is taken."""

import random

import msgspec
import pytest

from vllm_ascend.core.reporting.cache_stats import BoundaryKind, CacheStats, CacheUpdate

NO_EVICTIONS = [0, 0]


def test_nothing_new_is_nothing():
    stats = CacheStats()
    stats.partial_hits += 1
    assert stats.take((1, 9), NO_EVICTIONS) is not None
    assert stats.take((1, 9), NO_EVICTIONS) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda stats: setattr(stats, "copied_blocks", 3),
        lambda stats: setattr(stats, "lost_prompts", 1),
        lambda stats: setattr(stats, "passed_requests", 1),
        lambda stats: setattr(stats, "held_steps", 1),
        lambda stats: setattr(stats, "reserved_blocks", 1),
        lambda stats: stats.kept.__setitem__(BoundaryKind.FINISH, 1),
        lambda stats: stats.note_start(10, 0, missed_junction=False),
        lambda stats: stats.look_up_seconds.append(0.0),
    ],
)
def test_any_change_is_told_once(change):
    stats = CacheStats()
    stats.take((1, 9), NO_EVICTIONS)
    change(stats)
    assert stats.take((1, 9), NO_EVICTIONS) is not None
    assert stats.take((1, 9), NO_EVICTIONS) is None


def test_blocks_are_a_state_and_counters_are_differences():
    stats = CacheStats()
    stats.note_start(1000, 896, missed_junction=False)
    stats.note_start(500, 0, missed_junction=True)
    stats.kept[BoundaryKind.JUNCTION] += 1
    first = stats.take((4, 5, 6), [7, 8])
    assert first == CacheUpdate(
        blocks=(4, 5, 6),
        evicted=(7, 8),
        kept=(0, 0, 0, 1),
        junction_misses=1,
        prompt_tokens=1500,
        hit_tokens=(896, 0),
    )
    stats.kept[BoundaryKind.REPLAY] += 2
    second = stats.take((3, 6, 6), [7, 10])
    assert second == CacheUpdate(blocks=(3, 6, 6), evicted=(0, 2), kept=(2, 0, 0, 0))


def test_where_only_blocks_move_only_blocks_are_told():
    stats = CacheStats()
    stats.note_start(1000, 896, missed_junction=False)
    stats.take((4, 5, 6), [7, 8])
    assert stats.take((5, 4, 6), [7, 8]) == CacheUpdate(blocks=(5, 4, 6))


def test_updates_add_up_whenever_they_are_taken():
    rng = random.Random(0)
    stats = CacheStats()
    evicted = [0, 0]
    updates = []
    for _ in range(200):
        stats.kept[rng.randrange(4)] += rng.randrange(3)
        stats.partial_hits += rng.randrange(2)
        evicted[rng.randrange(2)] += rng.randrange(3)
        stats.note_start(rng.randrange(100), rng.randrange(100), missed_junction=False)
        if rng.random() < 0.3:
            updates.append(stats.take((0,), evicted))
    updates.append(stats.take((1,), evicted))
    updates = [u for u in updates if u.kept]
    assert [sum(column) for column in zip(*(u.kept for u in updates), strict=True)] == stats.kept
    assert [sum(column) for column in zip(*(u.evicted for u in updates), strict=True)] == evicted
    assert sum(u.partial_hits for u in updates) == stats.partial_hits
    assert sum(u.prompt_tokens for u in updates) == stats.prompt_tokens
    assert sum(len(u.hit_tokens) for u in updates) == 200


def test_an_update_survives_the_wire_in_few_bytes():
    update = CacheUpdate(blocks=(1000, 2000, 300, 5), evicted=(0, 1), kept=(0, 2, 0, 0))
    encoded = msgspec.msgpack.encode(update)
    assert msgspec.msgpack.decode(encoded, type=CacheUpdate) == update
    assert len(encoded) < 32


def test_observations_that_nobody_takes_stay_few():
    """An engine without statistics never takes any."""
    stats = CacheStats()
    for _ in range(10_000):
        stats.note_start(1, 1, missed_junction=False)
    assert len(stats.hit_tokens) < 5_000
