# SPDX-License-Identifier: Apache-2.0
"""What is where in host memory, and what is given up first."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vllm_ascend.tier.host_index import HostIndex, page_bytes
from vllm_ascend.tier.host_memory import pages_in
from vllm_ascend.tier.layout import ROWS, TAIL
from vllm_ascend.tier.objects import HEADER_BYTES, Gone
from vllm_ascend.tier.tail_choice import KEPT

UNIT, LONG = 1000, 5000
ROOM = UNIT + HEADER_BYTES


def index(num_units: int) -> HostIndex:
    made = HostIndex(num_units * page_bytes((ROOM,)) + LONG // 2, (UNIT,))
    assert made.num_pages >= num_units
    return made


def store(target: HostIndex, name: bytes, rank: int = KEPT, kind: bytes = ROWS) -> bool:
    key = kind + name
    if target.is_known(key) or not target.reserve([key], UNIT, rank=rank):
        return False
    target.stored(key)
    return True


def fill(target: HostIndex) -> int:
    number = 0
    while target.num_used_pages < target.num_pages:
        assert store(target, b"%d" % number)
        number += 1
    return number


def test_what_was_used_least_recently_goes_first():
    target = index(4)
    number = fill(target)
    target.touch([ROWS + b"0"])
    assert store(target, b"new")
    there = target.contains([ROWS + b"%d" % i for i in range(number)])
    assert there == [True, False] + [True] * (number - 2)
    assert target.num_evicted == {ROWS: 1, TAIL: 0}
    assert target.take_gone() == Gone([ROWS + b"1"], 1)
    assert target.take_gone() == Gone([], 0)


def test_what_is_dropped_or_reset_is_gone_but_was_not_given_up_for_others():
    target = index(4)
    number = fill(target)
    target.drop(ROWS + b"0")
    assert target.take_gone() == Gone([ROWS + b"0"], 0)
    target.clear()
    assert target.take_gone() == Gone([ROWS + b"%d" % i for i in range(1, number)], 0)


def test_spare_tails_go_before_what_is_kept_and_never_take_its_place():
    target = index(4)
    assert store(target, b"spare", rank=0, kind=TAIL)
    number = fill(target)
    assert (
        not store(target, b"higher", rank=1, kind=TAIL) or not target.contains([TAIL + b"spare"])[0]
    )
    assert store(target, b"kept")
    assert target.contains([TAIL + b"spare"]) == [False]
    assert not store(target, b"another", rank=KEPT - 1) or number == 0


def test_a_spare_tail_that_was_loaded_is_kept():
    target = index(4)
    assert store(target, b"spare", rank=0, kind=TAIL)
    fill(target)
    target.use([TAIL + b"spare"])
    target.release([TAIL + b"spare"])
    assert store(target, b"kept")
    assert target.contains([TAIL + b"spare"]) == [True], "it was used last"


def test_a_touch_leaves_spare_tails_spare():
    target = index(4)
    assert store(target, b"spare", rank=0, kind=TAIL)
    fill(target)
    target.touch([TAIL + b"spare"])
    assert store(target, b"kept")
    assert target.contains([TAIL + b"spare"]) == [False]


def test_what_another_has_taken_the_place_of_goes_first():
    target = index(4)
    last = ROWS + b"%d" % (fill(target) - 1)
    target.forget_first(last)
    assert store(target, b"kept")
    assert target.contains([last]) == [False]


def test_pages_in_use_do_not_change_hands():
    target = index(2)
    number = fill(target)
    places = target.use([ROWS + b"%d" % i for i in range(number)])
    assert not store(target, b"new")
    target.drop(ROWS + b"0")  # found unusable while it is loaded
    assert target.contains([ROWS + b"0"]) == [False]
    assert not store(target, b"0"), "its pages are still read"
    target.release([ROWS + b"0"])
    assert target.reserve([ROWS + b"new"], UNIT) == places[:1]


def test_of_several_objects_the_first_ones_find_room_and_nothing_is_given_up_for_the_others():
    target = index(5)
    number = fill(target)
    target.use([ROWS + b"%d" % i for i in range(1, number - 3)])
    new = [ROWS + b"new %d" % i for i in range(4)]
    # Each takes two pages; four objects of one page are not in use.
    assert [len(pages_in(p)) for p in target.reserve(new, UNIT, num_parts=2)] == [2, 2]
    assert [target.is_known(key) for key in new] == [True, True, False, False]
    assert len(target.take_gone().keys) == 4
    target.check_integrity()


def test_what_is_being_written_cannot_be_loaded_and_what_was_not_is_forgotten():
    target = index(2)
    assert target.reserve([ROWS + b"a"], UNIT)
    assert target.is_known(ROWS + b"a") and not target.contains([ROWS + b"a"])[0]
    target.drop(ROWS + b"a", by_writer=True)
    assert not target.is_known(ROWS + b"a")
    target.check_integrity()


def test_a_reset_forgets_all_but_pages_in_use():
    target = index(4)
    fill(target)
    target.use([ROWS + b"0"])
    target.reserve([ROWS + b"new"], UNIT)
    target.clear()
    assert not any(target.contains([ROWS + b"%d" % i for i in range(4)]))
    target.release([ROWS + b"0"])
    assert target.num_used_pages == 0 or target.num_used_pages < 3
    target.check_integrity()


def test_memory_that_holds_no_object_is_refused():
    with pytest.raises(ValueError, match='"gib" is too small'):
        HostIndex(ROOM, (UNIT, LONG))


@pytest.mark.parametrize("unit, tail", [(795_968, 6_627_328), (10_000, 70_001), (100, 100)])
def test_pages_waste_less_than_two_percent(unit, tail):
    size = page_bytes((unit, tail))
    for wanted in (unit, tail):
        assert -(-wanted // size) * size <= 1.02 * wanted + 64


class IndexMachine(RuleBasedStateMachine):
    """Any order of stores, loads, drops and resets leaves every page one owner."""

    def __init__(self) -> None:
        super().__init__()
        self.index = index(6)
        self.writing: list[bytes] = []
        self.loading: list[bytes] = []

    @rule(
        name=st.integers(0, 12),
        count=st.integers(1, 4),
        rank=st.integers(0, KEPT),
        parts=st.sampled_from([1, 2]),
    )
    def reserve(self, name, count, rank, parts):
        keys = [ROWS + b"%d" % n for n in range(name, name + count)]
        keys = [key for key in keys if not self.index.is_known(key)]
        has_room = self.index.has_room(UNIT, parts, rank)
        places = self.index.reserve(keys, UNIT, parts, rank)
        assert has_room or not places
        self.writing += keys[: len(places)]

    @precondition(lambda self: self.writing)
    @rule(ok=st.booleans())
    def end_write(self, ok):
        key = self.writing.pop(0)
        if ok:
            self.index.stored(key)
        else:
            self.index.drop(key, by_writer=True)

    @rule(name=st.integers(0, 12))
    def load(self, name):
        key = ROWS + b"%d" % name
        if self.index.contains([key])[0]:
            self.index.use([key])
            self.loading.append(key)

    @precondition(lambda self: self.loading)
    @rule(drops=st.booleans())
    def end_load(self, drops):
        key = self.loading.pop()
        if drops:
            self.index.drop(key)
        self.index.release([key])

    @rule(name=st.integers(0, 12))
    def touch(self, name):
        self.index.touch([ROWS + b"%d" % name])

    @rule()
    def clear(self):
        self.index.clear()

    @invariant()
    def every_page_has_one_owner(self):
        self.index.check_integrity()
        for key in {*self.loading, *self.writing}:
            assert self.index.is_known(key)


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
