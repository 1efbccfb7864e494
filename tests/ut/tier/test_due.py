# SPDX-License-Identifier: Apache-2.0
"""Requests are due in the step that knows something of them to be complete, and seldom sooner."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend.tier.due import DueRequests

UNIT = 16
NAMES = [f"r{i}" for i in range(5)]
STEPS = st.lists(
    st.dictionaries(st.sampled_from(NAMES), st.one_of(st.just(1), st.integers(1, 60))), max_size=60
)


@given(steps=STEPS, rejected=st.randoms(use_true_random=False))
def test_units_that_are_known_when_a_step_is_scheduled_are_not_overlooked(steps, rejected):
    due = DueRequests()
    known, told = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
    for name in NAMES:
        due.expect(name, 0)
    for scheduled in steps:
        taken = due.take(scheduled)
        assert len(set(taken)) == len(taken) and set(taken) <= set(scheduled)
        for name, num_tokens in scheduled.items():
            if name in taken:
                told[name] = known[name] // UNIT
                missing = (told[name] + 1) * UNIT - (known[name] + num_tokens)
                due.expect(name, max(missing, 0))
            assert told[name] == known[name] // UNIT
            known[name] += num_tokens - rejected.randrange(min(num_tokens, 3))


def test_requests_that_only_decode_are_not_asked_before_a_unit_is_complete():
    due, asked = DueRequests(), 0
    for i, name in enumerate(NAMES):
        due.expect(name, UNIT - i)
    for _ in range(10 * UNIT):
        for name in due.take(dict.fromkeys(NAMES, 1)):
            asked += 1
            due.expect(name, UNIT)
    assert asked == 10 * len(NAMES)


def test_one_that_is_not_scheduled_waits_and_one_that_has_ended_is_forgotten():
    due = DueRequests()
    for name in NAMES:
        due.expect(name, 1)
    due.forget(NAMES[0])
    assert due.take({NAMES[1]: 1}) == [NAMES[1]]
    assert due.take(dict.fromkeys(NAMES, 1)) == NAMES[2:]
    due.expect_at_once(NAMES[0])
    assert due.take(dict.fromkeys(NAMES, 1)) == []
