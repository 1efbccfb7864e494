# SPDX-License-Identifier: Apache-2.0
"""Stores that are late and fail, counted in steps: a replay must not depend on the machine."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from vllm_ascend.tier.store_thread import StoreThread

_MOST_STEPS = 6


class LateCalls:
    """Makes one call after the other, as a thread would, some steps after they were asked for.

    Args:
        late: share of calls that take steps.
    """

    def __init__(self, seed: str, late: float) -> None:
        self._random, self._late = random.Random(seed), late
        self._now = 0
        self._calls: deque[tuple[int, Future[Any], Callable[[], Any]]] = deque()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Make a call, now or later."""
        future: Future[Any] = Future()
        steps = self._random.randrange(1, _MOST_STEPS) if self._random.random() < self._late else 0
        self._calls.append((self._now + steps, future, lambda: function(*args)))
        self._make(self._now)
        return future

    def step(self) -> None:
        """A step has passed."""
        self._now += 1
        self._make(self._now)

    def flush(self) -> None:
        """Make all calls that were asked for."""
        self._make(None)

    def be_quick(self) -> None:
        """From now on nothing is late."""
        self._late = 0.0
        self.flush()

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Make no more calls."""
        self._calls.clear()

    def _make(self, now: int | None) -> None:
        while self._calls and (now is None or self._calls[0][0] <= now):
            _, future, function = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)


class LateStoreThread(StoreThread):
    """The scheduler's calls of a store, without a thread."""

    def __init__(self, seed: str, late: float) -> None:
        super().__init__(most_seconds=1e9)
        self.late_calls = LateCalls(seed, late)

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Make a call, now or in a later step."""
        return self.late_calls.submit(function)

    def has_ended(self, call: Future[Any], seconds: float | None = None) -> bool:
        """Whether a call has ended; who says how long he waits, waits for it."""
        if seconds is not None:
            self.late_calls.flush()
        return call.done()

    def step_ends(self) -> None:
        """A step has passed."""
        self.late_calls.step()

    def close(self, leave: Callable[[], Any]) -> None:
        """Make the last call."""
        self.late_calls.submit(leave)
        self.late_calls.flush()


class FailingStore:
    """A worker's store that takes some objects and gives others.

    Args:
        store: the backend's.
        failures: share of calls that fail.
    """

    def __init__(self, store: Any, seed: str, failures: float) -> None:
        self._store, self._random, self.failures = store, random.Random(seed), failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(
        self, keys: Sequence[bytes], places: Any, objects: Sequence[Any], layout: bytes
    ) -> list[bool]:
        """Store all objects, none, or some."""
        if not self._fails():
            return self._store.write(keys, places, objects, layout)
        if self._random.random() < 0.2:
            raise OSError("the store is away")
        chosen = [i for i in range(len(keys)) if self._random.random() < 0.5]
        parts = ([items[i] for i in chosen] for items in (keys, places, objects))
        stored = dict(zip(chosen, self._store.write(*parts, layout), strict=True))
        return [stored.get(i, False) for i in range(len(keys))]

    def read(
        self, keys: Sequence[bytes], places: Any, targets: Sequence[Any], layout: bytes
    ) -> list[str | None]:
        """Load all objects, or all but one."""
        reasons = self._store.read(keys, places, targets, layout)
        if self._fails():
            if self._random.random() < 0.2:
                raise OSError("the store is away")
            reasons[self._random.randrange(len(reasons))] = "torn"
        return reasons

    def _fails(self) -> bool:
        return self._random.random() < self.failures
