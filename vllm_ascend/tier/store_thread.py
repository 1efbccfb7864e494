# SPDX-License-Identifier: Apache-2.0
"""A thread that calls a store, so that who schedules steps never waits for another machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any


class StoreThread:
    """Makes one call after the other. A call that runs cannot be taken back.

    Attributes:
        grace_s: So long a step waits for all its calls together, in seconds. A store that is well
            answers within it, and then no request waits for the next step.
    """

    grace_s = 0.002

    def __init__(self, most_seconds: float) -> None:
        """Start no thread before the first call.

        Args:
            most_seconds: A call that runs longer hangs.
        """
        self._most_seconds = most_seconds
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._running_since: float | None = None
        self._waited_s = 0.0

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Call a function on the thread, behind all earlier calls."""
        if self._thread is None:
            # A daemon: a process that ends does not wait for a store that hangs.
            self._thread = threading.Thread(target=self._run, name="tier-ask", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._calls.put((future, function))
        return future

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            future, function = item
            if not future.set_running_or_notify_cancel():
                continue
            self._running_since = time.monotonic()
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            self._running_since = None

    def has_ended(self, call: Future[Any], seconds: float | None = None) -> bool:
        """Whether a call has ended; it may be waited for.

        Args:
            seconds: How long; ``None``: what is left of the step's grace.
        """
        if call.done():
            return True
        started = time.monotonic()
        left = self.grace_s - self._waited_s if seconds is None else seconds
        if left > 0:
            wait((call,), timeout=left)
        if seconds is None:
            self._waited_s += time.monotonic() - started
        return call.done()

    def step_ends(self) -> None:
        """The next step may wait again."""
        self._waited_s = 0.0

    def is_stuck(self) -> bool:
        """Whether a call hangs, so that nothing behind it is answered."""
        since = self._running_since
        return since is not None and time.monotonic() - since > self._most_seconds

    def close(self, leave: Callable[[], Any]) -> None:
        """Make the last call, and end.

        A store must not be left under a call that runs. A call that hangs ends with the process.
        """
        last = self.call(leave)
        self._calls.put(None)
        self.has_ended(last, self._most_seconds)
