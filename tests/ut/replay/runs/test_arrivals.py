# SPDX-License-Identifier: Apache-2.0
"""When requests come in."""

import pytest

from vllm_ascend.replay.runs.arrivals import ClosedLoop, TimestampArrivals
from vllm_ascend.replay.trace import BadInputError, TraceRequest, Workload


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


def test_a_workload_that_cannot_be_replayed_is_refused_before_it_starts():
    workload = make_workload(None, None)
    workload.check(needs_arrivals=False, max_model_len=5)
    with pytest.raises(BadInputError, match="x has no timestamps: use --arrivals closed"):
        workload.check(needs_arrivals=True, max_model_len=5)
    with pytest.raises(BadInputError, match="request 0 has 5 tokens with its answer"):
        workload.check(needs_arrivals=False, max_model_len=4)
