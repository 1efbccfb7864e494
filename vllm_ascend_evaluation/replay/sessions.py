# SPDX-License-Identifier: Apache-2.0
"""Requests of sessions: the next turn of a conversation waits for the answer to the one before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from vllm_ascend_evaluation.replay.trace import TraceRequest

Numbered = tuple[int, TraceRequest]


class Turns:
    """Hands out requests in their order, but passes over those that wait for their session.

    A request waits if it has a ``think_ms`` and a request of its session is on its way. No more is
    read ahead than it takes to find one that does not wait.
    """

    def __init__(self, requests: Iterable[TraceRequest]) -> None:
        self._requests: Iterator[Numbered] = enumerate(requests)
        self._held_back: list[Numbered] = []
        self._on_their_way: Counter[int] = Counter()

    def take(self) -> Numbered | None:
        """Return the next request that need not wait, with its number from 0.

        Returns:
            ``None`` if all that is left waits, or if nothing is left.
        """
        waiting = set()
        for place, (_, request) in enumerate(self._held_back):
            # Not past an earlier turn of its own session, either.
            if request.session not in waiting and not self._waits(request):
                return self._start(self._held_back.pop(place))
            waiting.add(request.session)
        for numbered in self._requests:
            _, request = numbered
            is_behind = request.think_ms is not None and request.session in waiting
            if not is_behind and not self._waits(request):
                return self._start(numbered)
            self._held_back.append(numbered)
            waiting.add(request.session)
        return None

    @property
    def has_more(self) -> bool:
        """Whether requests are held back: once nothing is taken, these are all that is left."""
        return bool(self._held_back)

    def finish(self, request: TraceRequest) -> None:
        """Note that a request was answered."""
        if request.session is not None:
            self._on_their_way[request.session] -= 1

    def _waits(self, request: TraceRequest) -> bool:
        if request.session is None or request.think_ms is None:
            return False
        return self._on_their_way[request.session] > 0

    def _start(self, numbered: Numbered) -> Numbered:
        session = numbered[1].session
        if session is not None:
            self._on_their_way[session] += 1
        return numbered
