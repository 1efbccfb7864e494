# SPDX-License-Identifier: Apache-2.0
"""Resets of a store that engines share: what is there goes, and what still arrives there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from vllm_ascend.tier.store_thread import StoreThread

# So long what is on its way is waited for; then what is there is removed, and the rest later.
_ARRIVAL_S = 10.0
_POLL_S = 0.02
_REFUSED = "the store did not remove its objects"


class Cleared(Protocol):
    """What a store's index can do for resets; see ``mooncake.MooncakeIndex``."""

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]: ...
    def forget_all(self) -> None: ...
    def clear(self) -> bool: ...


class SharedReset:
    """Removes everything, beside the scheduler's thread, as often as it takes.

    Attributes:
        is_pending: Something of before a reset may still be there, so nothing may be hit.
    """

    def __init__(self, index: Cleared, thread: StoreThread, most_seconds: float) -> None:
        """Take how long the caller of a reset waits at most."""
        self._index, self._thread, self._most_seconds = index, thread, most_seconds
        self.is_pending = False
        self._call: Future[bool] | None = None
        self._had_arrived = True

    def begin(self, on_their_way: Sequence[bytes], *, all_arrived: bool) -> str | None:
        """Forget everything, and wait until it is removed; return why it is not, if the store
        refuses or does not answer.

        Args:
            on_their_way: Objects that are being stored.
            all_arrived: Whether nothing is being stored any more.
        """
        self.is_pending = True
        if self._call is not None:
            self._call.cancel()
        call = self._start(lambda: self._clear(on_their_way), all_arrived)
        if not self._thread.has_ended(call, self._most_seconds):
            return "the store did not answer a reset"
        return self._ended(call)

    def go_on(self, *, all_arrived: bool) -> str | None:
        """Remove what has arrived since; once per step. Return why that failed, if it did."""
        call = self._call
        if call is None and self.is_pending and all_arrived:
            call = self._start(self._index.clear, all_arrived)
        if call is None or not self._thread.has_ended(call):
            return None
        return self._ended(call)

    def _start(self, clear: Callable[[], bool], all_arrived: bool) -> Future[bool]:
        # Whether everything that arrives was there before it was removed.
        self._had_arrived = all_arrived
        self._index.forget_all()
        self._call = self._thread.call(clear)
        return self._call

    def _ended(self, call: Future[bool]) -> str | None:
        self._call = None
        is_done = call.exception() is None and call.result()
        self.is_pending = not (is_done and self._had_arrived)
        return None if is_done else _REFUSED

    def _clear(self, on_their_way: Sequence[bytes]) -> bool:
        """Remove everything; on the thread that calls the store."""
        deadline = time.monotonic() + min(_ARRIVAL_S, self._most_seconds / 2)
        with contextlib.suppress(RuntimeError):  # it does not answer
            while not all(self._index.contains(on_their_way)) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        return self._index.clear()
