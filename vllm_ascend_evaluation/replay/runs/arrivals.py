# SPDX-License-Identifier: Apache-2.0
"""When requests come in: as fast as others finish, or by the trace's own clock."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from vllm_ascend_evaluation.replay.sessions import Turns
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload


class Arrivals(Protocol):
    """Hands requests to the engine."""

    def due(self, num_live: int, now_ms: float) -> TraceRequest | None:
        """Return the next request if it has arrived, else ``None``."""
        ...

    def next_arrival_ms(self) -> float | None:
        """Return when the next request arrives, ``None`` if it waits for others or none is left."""
        ...

    def finished(self, request: TraceRequest, now_ms: float) -> None:
        """Note that a request of a session was answered."""
        ...


class ClosedLoop:
    """Keeps a fixed number of requests in flight; turns of a session never overlap."""

    def __init__(self, workload: Workload) -> None:
        self._turns = Turns(workload.requests())
        self._concurrency = workload.concurrency

    def due(self, num_live: int, now_ms: float) -> TraceRequest | None:
        """Return the next request while fewer than ``concurrency`` are live; it arrives now."""
        if num_live >= self._concurrency:
            return None
        taken = self._turns.take()
        # A trace's own time means nothing here: waiting would be counted from it.
        return None if taken is None else replace(taken[1], arrival_ms=now_ms)

    def next_arrival_ms(self) -> float | None:
        """Nothing is awaited by the clock."""
        return None

    def finished(self, request: TraceRequest, now_ms: float) -> None:
        """Let the next turn of its session in."""
        self._turns.finish(request)


@dataclass
class _Session:
    """What is known of a session.

    Attributes:
        num_open: Requests that are awaited or on their way.
        last_ms: When the last answer ended.
        waiting: Turns that wait for an answer.
    """

    num_open: int = 0
    last_ms: float = 0.0
    waiting: deque[TraceRequest] = field(default_factory=deque)


class TimestampArrivals:
    """Lets requests in when the virtual clock reaches their arrival.

    That is its timestamp or, for a turn without one, its think time after the answer to the turn
    before it.
    """

    def __init__(self, workload: Workload, speed: float = 1.0) -> None:
        """Let the requests of a workload in.

        Args:
            speed: So many times as fast: timestamps and think times are divided by it.
        """
        self._speed = speed
        self._requests: Iterator[TraceRequest] = workload.requests()
        self._sessions: dict[int, _Session] = {}
        # When, a number that no other has, the request, and whether the trace says when.
        self._due: list[tuple[float, int, TraceRequest, bool]] = []
        self._num_pushed = 0
        self._read()

    def due(self, num_live: int, now_ms: float) -> TraceRequest | None:
        """Return the next request if the clock has reached it."""
        if not self._due or self._due[0][0] > now_ms:
            return None
        _, _, request, is_timed = heapq.heappop(self._due)
        if is_timed:
            self._read()
        return request

    def next_arrival_ms(self) -> float | None:
        """Return the arrival of the next request."""
        return self._due[0][0] if self._due else None

    def finished(self, request: TraceRequest, now_ms: float) -> None:
        """Let the next turn of its session in once its think time is over."""
        assert request.session is not None, "only requests of sessions are told"
        session = self._sessions[request.session]
        session.num_open -= 1
        session.last_ms = now_ms
        if session.waiting and not session.num_open:
            self._push_turn(session, session.waiting.popleft())

    def _read(self) -> None:
        """Read up to the next request that has a timestamp, and that one."""
        for request in self._requests:
            session = self._session(request)
            if request.arrival_ms is not None:
                session.num_open += 1
                self._push(request.arrival_ms / self._speed, request, is_timed=True)
                return
            if session.num_open or session.waiting:
                session.waiting.append(request)
            else:
                self._push_turn(session, request)

    def _session(self, request: TraceRequest) -> _Session:
        if request.session is None:
            return _Session()
        return self._sessions.setdefault(request.session, _Session())

    def _push_turn(self, session: _Session, request: TraceRequest) -> None:
        session.num_open += 1
        assert request.think_ms is not None, "checked before anything ran"
        think_ms = request.think_ms / self._speed
        self._push(session.last_ms + think_ms, request, is_timed=False)

    def _push(self, due_ms: float, request: TraceRequest, *, is_timed: bool) -> None:
        arriving = replace(request, arrival_ms=due_ms)
        heapq.heappush(self._due, (due_ms, self._num_pushed, arriving, is_timed))
        self._num_pushed += 1
