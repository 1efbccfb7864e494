# SPDX-License-Identifier: Apache-2.0
"""Which requests may have something to store in a step, without asking those that only decode."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import count

# More tokens are a part of a prompt. Drafts and the token behind them are fewer.
_MOST_DECODED = 16


class DueRequests:
    """Requests by how far they must get before anything of them is complete.

    A clock adds up the most tokens that a request can have decoded in each step. No request that
    only decodes gets anywhere sooner than the clock.
    """

    def __init__(self) -> None:
        self._clock = 0
        self._queue: list[tuple[int, int, str]] = []
        self._order = count()
        self._latest: dict[str, int] = {}

    def expect(self, request_id: str, num_tokens: int) -> None:
        """A request is due when it has got so many tokens further, whatever was said before."""
        number = self._latest[request_id] = next(self._order)
        heapq.heappush(self._queue, (self._clock + num_tokens, number, request_id))

    def expect_at_once(self, request_id: str) -> None:
        """A request is due in its next step, if it has not ended."""
        if request_id in self._latest:
            self.expect(request_id, 0)

    def forget(self, request_id: str) -> None:
        """A request has ended."""
        self._latest.pop(request_id, None)

    def take(self, scheduled: Mapping[str, int]) -> list[str]:
        """Return the requests of a step that may be due, those that decode first.

        Each of them is due no more, until :meth:`expect` is called.

        Args:
            scheduled: Request id -> tokens of the step.
        """
        most = max(scheduled.values(), default=0)
        long: list[str] = []
        if most > _MOST_DECODED:
            long = [request_id for request_id, n in scheduled.items() if n > _MOST_DECODED]
            most = max([n for n in scheduled.values() if n <= _MOST_DECODED], default=0)
        self._clock += most
        due: list[str] = []
        waiting: list[str] = []
        while self._queue and self._queue[0][0] <= self._clock:
            _, number, request_id = heapq.heappop(self._queue)
            if self._latest.get(request_id) == number:
                (due if request_id in scheduled else waiting).append(request_id)
        for request_id in waiting:
            self.expect(request_id, 0)
        return due + [request_id for request_id in long if request_id not in due]
