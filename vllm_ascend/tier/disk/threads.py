# SPDX-License-Identifier: Apache-2.0
"""What a disk does beside the steps: threads of the scheduler's process move its files."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from vllm_ascend.tier.disk.files import Buffers, DiskFiles, remove_trash
from vllm_ascend.tier.disk.others import Change, OthersWatch
from vllm_ascend.tier.host_memory import Place
from vllm_ascend.tier.layout import TAIL
from vllm_ascend.tier.store_thread import StoreThread

Ended = Callable[[str | None, str], None]
"""Told the generation that an object has now, ``None`` if it has none, and what went wrong."""
_NUM_READERS = 4


_LOOK_EVERY_S = 2.0


class DiskWork(Protocol):
    """What :class:`~vllm_ascend.tier.disk.level.DiskLevel` has done. No call waits for a disk.

    What is done to one name is done in the order of the calls.
    """

    def begin(self, tell: Callable[[Change], None]) -> Iterable[tuple[bytes, str]]:
        """Return (key, generation) of what is there, those used least recently first.

        Args:
            tell: Told from then on, by any thread, what other engines do to the same files.
        """
        ...

    def write(
        self, key: bytes, place: Place, due: float, is_wanted: Callable[[], bool], ended: Ended
    ) -> None:
        """Write pages, not before a time, and only if they are still wanted then."""
        ...

    def read(self, key: bytes, generation: str, place: Place, ended: Ended) -> None:
        """Read an object into pages."""
        ...

    def remove(self, key: bytes, generation: str) -> None:
        """Remove an object, in front of whatever is written under its name from now on."""
        ...

    def clear(self) -> None:
        """Take everything away; nobody finds it from now on.

        Raises:
            OSError: The disk fails, so the next engine would find it again.
        """
        ...

    def close(self, seconds: float) -> None:
        """Write what waits, for so long at most, and let go of the disk."""
        ...


class DiskThreads:
    """Files by threads of their own: one writes rows, one tails, which settle first; some read."""

    def __init__(self, files: DiskFiles, buffers: Callable[[Place], Buffers]) -> None:
        """Take files, and what gives the memory of pages."""
        self._files, self._buffers = files, buffers
        self.rows, self.tails = StoreThread(0), StoreThread(0)
        self.readers = [StoreThread(0) for _ in range(_NUM_READERS)]
        self._next_reader = 0
        self._looking = threading.Lock()
        self.closes = threading.Event()
        self._watch = OthersWatch(files)
        self._tell: Callable[[Change], None] = lambda change: None

    def begin(self, tell: Callable[[Change], None]) -> Iterable[tuple[bytes, str]]:
        """Return what is there, and look now and then what others do; see :class:`DiskWork`."""
        self._tell = tell
        there = self._watch.look().found
        threading.Thread(target=self._look_on, name="tier-look", daemon=True).start()
        return there

    def _look_on(self) -> None:
        while not self.closes.wait(_LOOK_EVERY_S):
            with contextlib.suppress(OSError):  # reads and writes tell of it
                self.look()

    def look(self) -> None:
        """Tell what others have done since the last look.

        Raises:
            OSError: The disk fails.
        """
        with self._looking:
            change = self._watch.look()
            if change.gone or change.found:
                self._tell(change)

    def write(
        self, key: bytes, place: Place, due: float, is_wanted: Callable[[], bool], ended: Ended
    ) -> None:
        """Write a file; see :class:`DiskWork`."""
        buffers = self._buffers(place)
        self._thread_of(key).call(partial(self._write, key, buffers, due, is_wanted, ended))

    def _write(
        self, key: bytes, buffers: Buffers, due: float, is_wanted: Callable[[], bool], ended: Ended
    ) -> None:
        """Write a file, on a thread."""
        generation, why = None, ""
        self.closes.wait(max(due - time.monotonic(), 0.0))
        try:
            num_clears = self._files.num_clears
            if is_wanted():
                generation = self._files.write(key, buffers, num_clears)
        except OSError as error:
            why = str(error)
        finally:
            ended(generation, why)

    def read(self, key: bytes, generation: str, place: Place, ended: Ended) -> None:
        """Read a file; see :class:`DiskWork`."""
        self._next_reader = (self._next_reader + 1) % _NUM_READERS
        reader, buffers = self.readers[self._next_reader], self._buffers(place)
        reader.call(partial(self._read, key, generation, buffers, ended))

    def _read(self, key: bytes, generation: str, buffers: Buffers, ended: Ended) -> None:
        """Read a file, on a thread."""
        found, why = None, ""
        try:
            found = self._files.read(key, generation, buffers)
        except OSError as error:
            why = str(error)
        finally:
            ended(found, why)

    def remove(self, key: bytes, generation: str) -> None:
        """Remove a file; see :class:`DiskWork`."""
        self._thread_of(key).call(partial(self._files.remove, key, generation))

    def _thread_of(self, key: bytes) -> StoreThread:
        """Return the thread of all that is done to a name, one after the other."""
        return self.tails if key[:1] == TAIL else self.rows

    def clear(self) -> None:
        """Put all files aside, and remove them later; see :class:`DiskWork`."""
        trash = self._files.clear()
        self.rows.call(partial(remove_trash, trash))

    def close(self, seconds: float) -> None:
        """End; see :class:`DiskWork`."""
        self.closes.set()
        ends = time.monotonic() + seconds
        last: list[tuple[StoreThread, Future[None]]] = [
            (thread, thread.call(lambda: None)) for thread in (self.rows, self.tails)
        ]
        for thread, call in last:
            thread.has_ended(call, max(ends - time.monotonic(), 0.0))
        self._files.close()
