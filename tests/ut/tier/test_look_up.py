# SPDX-License-Identifier: Apache-2.0
"""The longest hit in a store: the right one, and in few calls."""

from __future__ import annotations

import random

import pytest

from vllm_ascend.tier.look_up import StoredHit, longest_hit


class Stored:
    """Keys of rows and tails that are there; counts the calls and what they ask."""

    def __init__(self, rows: set[int], tails: set[int]) -> None:
        self.keys = {b"r%d" % unit for unit in rows} | {b"t%d" % end for end in tails}
        self.num_calls = self.num_asked = 0

    def __call__(self, keys):
        self.num_calls += 1
        self.num_asked += len(keys)
        return [key in self.keys for key in keys]


def find(rows, tails, first: int, limit: int, needs_tails: bool = True):
    stored = Stored(set(rows), set(tails))
    tail_key = (lambda end: b"t%d" % end) if needs_tails else None
    return longest_hit(stored, lambda unit: b"r%d" % unit, tail_key, first, limit), stored


@pytest.mark.parametrize(
    "rows, tails, first, limit, end",
    [
        (range(10), {10}, 0, 10, 10),
        (range(10), {10}, 0, 9, 0),  # the tail is behind the limit
        (range(10), {4, 7}, 0, 10, 7),
        (range(10), {4, 7}, 7, 10, 0),  # no longer than what is here
        (range(10), (), 0, 10, 0),
        ((), {10}, 0, 10, 0),
        (range(3, 10), {10}, 3, 10, 10),  # those in front are here
        (range(3, 10), {10}, 0, 10, 0),
    ],
)
def test_a_hit_needs_all_its_rows_and_its_tail(rows, tails, first, limit, end):
    assert find(rows, tails, first, limit)[0].end == end


def test_a_model_without_windows_needs_no_tail():
    assert find(range(10), (), 2, 20, needs_tails=False)[0] == StoredHit(10, 10)


def test_what_cannot_be_named_yet_is_not_there():
    stored = Stored(set(range(10)), {10})
    hit = longest_hit(stored, lambda unit: b"r%d" % unit if unit < 6 else None, None, 0, 10)
    assert hit.end == 6


@pytest.mark.parametrize("seed", range(40))
def test_every_hit_is_whole_and_as_long_as_one_that_is_looked_for_step_by_step(seed):
    rng = random.Random(seed)
    size = rng.choice([5, 40, 700])
    rows = set(range(rng.randrange(size + 1)))
    holes = {rng.randrange(size) for _ in range(rng.choice([0, 0, 2]))}
    tails = {end for end in range(1, size + 1) if rng.random() < 0.05}
    first = rng.randrange(size // 2 + 1)
    hit, _ = find(rows - holes, tails, first, size)
    usable = set(rows) - holes
    reach = next((u for u in range(first, size) if u not in usable), size)
    best = max((end for end in tails if first < end <= reach), default=0)
    assert hit.end in (best, 0) if holes else hit.end == best
    assert all(unit in usable for unit in range(first, hit.end))


@pytest.mark.parametrize(
    "rows, tails, num_calls, num_asked",
    [((), (), 1, 16), (range(8192), {8192}, 7, 8300), (range(8192), {40}, 9, 12_400)],
)
def test_a_million_tokens_are_looked_up_in_few_calls(rows, tails, num_calls, num_asked):
    _, stored = find(rows, tails, 0, 8192)
    assert stored.num_calls <= num_calls
    assert stored.num_asked <= num_asked
