# SPDX-License-Identifier: Apache-2.0
"""When requests come in: as fast as others finish, or by the trace's own clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from vllm_ascend.replay.trace import TraceRequest, Workload


class Arrivals(Protocol):
    """Hands requests to the engine."""

    def due(self, num_live: int, now_ms: float) -> TraceRequest | None:
        """Return the next request if it has arrived, else ``None``."""
        ...

    def next_arrival_ms(self) -> float | None:
        """Return when the next request arrives, ``None`` if it waits for others or none is left."""
        ...


class ClosedLoop:
    """Keeps a fixed number of requests in flight."""

    def __init__(self, workload: Workload) -> None:
        self._requests = workload.requests()
        self._concurrency = workload.concurrency

    def due(self, num_live: int, now_ms: float) -> TraceRequest | None:
        """Return the next request while fewer than ``concurrency`` are live; it arrives now."""
        if num_live >= self._concurrency:
            return None
        request = next(self._requests, None)
        # A trace's own time means nothing here: waiting would be counted from it.
        return request and replace(request, arrival_ms=now_ms)

    def next_arrival_ms(self) -> float | None:
        """Nothing is awaited by the clock."""
        return None


class TimestampArrivals:
    """Lets requests in when the virtual clock reaches their arrival."""

    def __init__(self, workload: Workload) -> None:
        self._requests: Iterator[TraceRequest] = workload.requests()
        self._next = self._read()

    def due(self, num_live: int, now_ms: float) -> TraceRequest | None:
        """Return the next request if the clock has reached it."""
        request = self._next
        if request is None or self._arrival(request) > now_ms:
            return None
        self._next = self._read()
        return request

    def next_arrival_ms(self) -> float | None:
        """Return the arrival of the next request."""
        return None if self._next is None else self._arrival(self._next)

    def _read(self) -> TraceRequest | None:
        return next(self._requests, None)

    def _arrival(self, request: TraceRequest) -> float:
        assert request.arrival_ms is not None, "checked before anything ran"
        return request.arrival_ms
