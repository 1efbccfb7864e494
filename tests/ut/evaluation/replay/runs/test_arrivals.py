# SPDX-License-Identifier: Apache-2.0
"""When requests come in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.runs.arrivals import ClosedLoop, TimestampArrivals
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload


def make_workload(*arrivals_ms: float | None, concurrency: int = 2) -> Workload:
    requests = [TraceRequest([1, 2, 3], 2, arrival_ms) for arrival_ms in arrivals_ms]
    return Workload("x", "", concurrency, len(requests), lambda: iter(requests))


def test_closed_loop_keeps_its_number_in_flight():
    arrivals = ClosedLoop(make_workload(None, None, None))
    assert arrivals.due(0, 0.0) and arrivals.due(1, 0.0)
    assert arrivals.due(2, 0.0) is None
    assert arrivals.due(1, 0.0)
    assert arrivals.due(1, 0.0) is None and arrivals.next_arrival_ms() is None


def test_in_a_closed_loop_a_request_arrives_when_it_is_let_in():
    """Not at the trace's time: waiting would be counted from before it was there."""
    request = ClosedLoop(make_workload(9_999.0)).due(0, 40.0)
    assert request is not None and request.arrival_ms == 40.0


def test_timestamps_wait_for_the_clock():
    arrivals = TimestampArrivals(make_workload(0.0, 30.0, concurrency=1))
    first = arrivals.due(0, 0.0)
    assert first is not None and first.arrival_ms == 0.0
    assert arrivals.due(1, 29.9) is None
    assert arrivals.next_arrival_ms() == 30.0
    # By then, however many are live.
    assert arrivals.due(99, 30.0) is not None
    assert arrivals.next_arrival_ms() is None


def turn(session: int, think_ms: float | None = None, arrival_ms: float | None = None):
    return TraceRequest([session], 1, arrival_ms, session, think_ms)


def of(*requests: TraceRequest, concurrency: int = 2) -> Workload:
    return Workload("x", "", concurrency, len(requests), lambda: iter(requests))


def test_in_a_closed_loop_turns_of_a_session_never_overlap():
    """Others go ahead: conversations stand one behind the other in a file."""
    arrivals = ClosedLoop(of(turn(1), turn(1, 0), turn(1, 0), turn(2), turn(2, 0), turn(3)))
    one, two = arrivals.due(0, 0.0), arrivals.due(1, 0.0)
    assert (one.session, two.session) == (1, 2)
    arrivals.finished(two, 5.0)
    assert arrivals.due(1, 5.0).session == 2  # held back before the third was read
    arrivals.finished(one, 6.0)
    again = arrivals.due(1, 6.0)
    assert (again.session, again.arrival_ms) == (1, 6.0)
    assert arrivals.due(1, 6.0).session == 3
    assert arrivals.due(1, 6.0) is None  # the last turn of the first one waits
    arrivals.finished(again, 7.0)
    assert arrivals.due(1, 7.0).session == 1 and arrivals.due(0, 7.0) is None


def test_a_turn_follows_the_answer_by_its_think_time():
    arrivals = TimestampArrivals(
        of(turn(1, None, 0.0), turn(1, 30.0), turn(1, 0.0), turn(2, None, 100.0))
    )
    first = arrivals.due(0, 0.0)
    assert arrivals.next_arrival_ms() == 100.0
    arrivals.finished(first, 40.0)
    assert arrivals.next_arrival_ms() == 70.0 and arrivals.due(0, 69.0) is None
    second = arrivals.due(0, 70.0)
    assert (second.session, second.arrival_ms) == (1, 70.0)
    other = arrivals.due(1, 100.0)
    arrivals.finished(second, 110.0)
    assert arrivals.due(1, 110.0).arrival_ms == 110.0
    arrivals.finished(other, 120.0)
    assert arrivals.due(0, 120.0) is None and arrivals.next_arrival_ms() is None


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=25), st.integers(1, 4))
def test_every_request_comes_once_and_turns_in_their_order(turns, concurrency):
    requests = [turn(session, 0.0 if waits else None) for session, waits in turns]
    arrivals = ClosedLoop(of(*requests, concurrency=concurrency))
    live, seen = [], []
    while True:
        while (request := arrivals.due(len(live), 0.0)) is not None:
            assert request.think_ms is None or request.session not in [r.session for r in live]
            live.append(request)
            seen.append(request.session)
        if not live:
            break
        arrivals.finished(live.pop(), 0.0)
    assert sorted(seen) == sorted(session for session, _ in turns)


def test_a_workload_without_times_cannot_be_replayed_by_them():
    make_workload(0.0, 5.0).check_arrivals()
    with pytest.raises(BadInputError, match="x has no timestamps: take other traffic, or"):
        make_workload(None, None).check_arrivals()


def test_time_is_scaled_as_a_whole():
    """Timestamps and think times: twice as fast, each turn comes in half the time."""
    arrivals = TimestampArrivals(of(turn(1, None, 10.0), turn(1, 30.0), turn(2, None, 100.0)), 2.0)
    assert arrivals.next_arrival_ms() == 5.0
    first = arrivals.due(0, 5.0)
    assert first.arrival_ms == 5.0 and arrivals.next_arrival_ms() == 50.0
    arrivals.finished(first, 20.0)
    assert arrivals.next_arrival_ms() == 35.0
