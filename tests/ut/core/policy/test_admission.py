# SPDX-License-Identifier: Apache-2.0
"""Who is let in first, and that nobody starves."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from vllm_ascend.core.policy.admission import (
    FADING_TURNS,
    MOST_PASSES,
    cached_first,
    cached_share,
)


def test_the_smallest_share_to_compute_goes_first() -> None:
    assert cached_first([1.0, 0.1, 0.5], [0, 0, 0], MOST_PASSES) == [1, 2, 0]


def test_equal_ones_stay_in_the_order_of_their_arrival() -> None:
    assert cached_first([7, 7, 7, 7], [0, 0, 0, 0], MOST_PASSES) == [0, 1, 2, 3]


def test_who_was_passed_often_enough_is_next() -> None:
    assert cached_first([900, 10, 20], [MOST_PASSES, 0, 0], MOST_PASSES) == [0, 1, 2]
    assert cached_first([900, 10, 20], [MOST_PASSES - 1, 0, 0], MOST_PASSES) == [1, 0, 2]


def test_one_order_alone_passes_nobody_too_often() -> None:
    assert cached_first([900, 800, 3, 2, 1], [1, 0, 0, 0, 0], most=3) == [4, 3, 0, 2, 1]


def test_nobody_waits() -> None:
    assert cached_first([], [], MOST_PASSES) == []


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=12), st.integers(1, 4))
def test_every_order_keeps_the_promise(requests: list[tuple[int, int]], most: int) -> None:
    left = [tokens for tokens, _ in requests]
    passes = sorted((min(passes, most) for _, passes in requests), reverse=True)
    order = cached_first(left, passes, most)
    assert sorted(order) == list(range(len(left)))
    for place, request in enumerate(order):
        later = sum(other > request for other in order[:place])
        assert passes[request] + later <= most
    for first, second in combinations(order, 2):
        assert left[first] != left[second] or first < second


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 10**6), st.integers(0, 10**9), st.integers(0, 10**6))
def test_the_caches_share_falls_from_half_to_nothing(
    num_blocks: int, handed_out: int, more: int
) -> None:
    share = cached_share(num_blocks, handed_out)
    assert cached_share(num_blocks, 0) == num_blocks - num_blocks // 2
    assert 0 <= cached_share(num_blocks, handed_out + more) <= share <= (num_blocks + 1) // 2
    assert cached_share(num_blocks, FADING_TURNS * num_blocks) == 0


class Door(RuleBasedStateMachine):
    """Requests come with any number of tokens to compute, which changes while they wait."""

    MOST = 3

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[int] = []  # by arrival
        self.left: dict[int, int] = {}
        self.passes: dict[int, int] = {}
        self.num_come = 0

    @rule(left=st.lists(st.integers(1, 4), min_size=1, max_size=6))
    def come(self, left: list[int]) -> None:
        for tokens in left:
            self.left[self.num_come], self.passes[self.num_come] = tokens, 0
            self.waiting.append(self.num_come)
            self.num_come += 1

    @rule(data=st.data())
    def cache_changes(self, data: st.DataObject) -> None:
        for request in self.waiting:
            self.left[request] = data.draw(st.integers(1, 4))

    @rule(count=st.integers(1, 5))
    def let_in(self, count: int) -> None:
        order = cached_first(
            [self.left[request] for request in self.waiting],
            [self.passes[request] for request in self.waiting],
            self.MOST,
        )
        for request in [self.waiting[place] for place in order[:count]]:
            self.waiting.remove(request)
            del self.left[request], self.passes[request]
            for earlier in self.waiting:
                self.passes[earlier] += earlier < request

    @invariant()
    def nobody_is_passed_too_often(self) -> None:
        assert max(self.passes.values(), default=0) <= self.MOST


TestDoor = Door.TestCase
TestDoor.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
