# SPDX-License-Identifier: Apache-2.0
"""Which requests that wait have loaded blocks: looked for once per step, not once per request."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request


class LoadedFirst:
    """The requests of a waiting queue that hold what they have loaded, in its order.

    Within a step the scheduler only takes requests out of the queue, and says so here.
    """

    def __init__(self) -> None:
        # Ordered; None: nobody has looked in this step.
        self._found: dict[int, Request] | None = None

    def step_starts(self) -> None:
        """A new step is being scheduled: requests have come, and loads have arrived."""
        self._found = None

    def choose(
        self, chosen: RequestQueue, skipped: RequestQueue, is_loaded: Callable[[Request], bool]
    ) -> RequestQueue | _OneRequest:
        """Return the queue whose head is to be scheduled next.

        Args:
            chosen: The one that vLLM chooses.
            skipped: The queue in which loaded requests wait.
            is_loaded: Whether a request holds what it has loaded.
        """
        head = chosen.peek_request()
        if is_loaded(head):
            return chosen if self._found is None else _OneRequest(chosen, head, self)
        if self._found is None:
            self._found = {id(request): request for request in skipped if is_loaded(request)}
        loaded = next(iter(self._found.values()), None)
        return chosen if loaded is None else _OneRequest(skipped, loaded, self)

    def is_taken(self, request: Request) -> None:
        """A request has been taken out of its queue."""
        if self._found is not None:
            self._found.pop(id(request), None)


class _OneRequest:
    """A waiting queue as far as the scheduler asks: at its head is a request from inside of one."""

    def __init__(self, queue: RequestQueue, request: Request, loaded_first: LoadedFirst) -> None:
        self._queue, self._request, self._loaded_first = queue, request, loaded_first

    def peek_request(self) -> Request:
        """Return the request."""
        return self._request

    def pop_request(self) -> Request:
        """Take the request out of its queue."""
        if self._queue.peek_request() is self._request:
            self._queue.pop_request()
        else:
            self._queue.remove_request(self._request)
        self._loaded_first.is_taken(self._request)
        return self._request
