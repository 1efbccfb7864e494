# SPDX-License-Identifier: Apache-2.0
"""What a step does for many requests grows as they do: calls are counted, not milliseconds."""

from __future__ import annotations

import sys

import pytest
from vllm.v1.core.sched.request_queue import FCFSRequestQueue

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from benchmarks.microscope.growth import AT_MOST, FACTOR, GROWTHS, REPEATS, Growth, ratios_of
from benchmarks.microscope.sides import SIDES
from vllm_ascend.core.admission.loaded_first import LoadedFirst
from vllm_ascend.core.admission.room_to_start import RoomToStart

NUM_REQUESTS = 24
# A few calls are made once, however many requests there are.
MOST_CALLS = FACTOR + 1


@pytest.fixture(autouse=True)
def best(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SIDES["best-128"].environment.items():
        monkeypatch.setenv(name, value)


def calls_of(growth: Growth, num_requests: int) -> int:
    """Count the calls of Python and C functions, and the steps of generators."""
    timed = growth.prepare(num_requests)
    num_calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        timed()
    finally:
        sys.setprofile(None)
    return num_calls


def growth_of_calls(growth: Growth) -> float:
    few, many = (calls_of(growth, n) for n in (NUM_REQUESTS, FACTOR * NUM_REQUESTS))
    return many / few


@pytest.mark.parametrize("growth", GROWTHS, ids=lambda growth: growth.prepare.__name__)
def test_four_times_the_requests_are_four_times_the_calls(growth):
    assert growth_of_calls(growth) <= MOST_CALLS


# Planted bugs


def look_anew(patch: pytest.MonkeyPatch) -> None:
    """Look for loaded requests once per request that is popped."""
    choose = LoadedFirst.choose

    def forget_and_choose(self, *arguments):
        self.step_starts()
        return choose(self, *arguments)

    patch.setattr(LoadedFirst, "choose", forget_and_choose)


def count_anew(patch: pytest.MonkeyPatch) -> None:
    """Count what all loaded requests need once per load."""
    blocks = RoomToStart.blocks

    def forget_and_count(self):
        self.step_starts()
        return blocks(self)

    patch.setattr(RoomToStart, "blocks", forget_and_count)


BUGS = dict(zip((look_anew, count_anew), GROWTHS, strict=False))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_walk_is_caught(bug, monkeypatch):
    bug(monkeypatch)
    assert growth_of_calls(BUGS[bug]) > MOST_CALLS


def test_a_ratio_fails_only_if_all_repeats_agree():
    growth = GROWTHS[0]
    for seconds, kept in (([1, 4], True), ([1, 9, 1, 4], True), ([1, 9] * REPEATS, False)):
        given = iter(seconds)
        ratios = ratios_of(growth, lambda growth, n, given=given: float(next(given)))
        assert (min(ratios) <= AT_MOST) is kept and not list(given)


# A queue whose head is not the request that is to go first


class Waits:
    def __init__(self, *, is_loaded: bool) -> None:
        self.is_loaded = is_loaded


def test_loaded_requests_go_first_in_their_order():
    loaded_first, queue = LoadedFirst(), FCFSRequestQueue()
    waiting = [Waits(is_loaded=number in (2, 3, 5)) for number in range(6)]
    queue.extend(waiting)
    taken = []
    while queue:
        chosen = loaded_first.choose(queue, queue, lambda request: request.is_loaded)
        head = chosen.peek_request()
        assert chosen.pop_request() is head
        taken.append(waiting.index(head))
    assert taken == [2, 3, 5, 0, 1, 4]
