# SPDX-License-Identifier: Apache-2.0
"""Writes and reads of a disk beside the steps: threads do them, the scheduler hears of it later."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from vllm_ascend.tier.disk.files import Buffers, DiskFiles, remove_trash
from vllm_ascend.tier.disk.index import DiskIndex
from vllm_ascend.tier.host_memory import Place, pages_in
from vllm_ascend.tier.layout import TAIL
from vllm_ascend.tier.statistics import TierCounts
from vllm_ascend.tier.store_thread import StoreThread

logger = logging.getLogger("vllm.vllm_ascend.tier")

SETTLE_S = 5.0
"""So long a tail waits before it is written: the last one of an answer takes the place of the one
before, so most never need to be."""
_PAUSE_S = 30.0
_NUM_READERS = 4


class Done(NamedTuple):
    """A write or a read that has ended.

    Attributes:
        is_read: Which.
        generation: Where the object is; ``None``: it was not written, or could not be read.
        epoch: How often everything had been forgotten when it was asked for.
    """

    key: bytes
    is_read: bool
    generation: str | None
    epoch: int


class DiskLevel:
    """A disk as the scheduler sees it. All methods are the scheduler's thread's.

    Attributes:
        counts: Where it counts; the scheduler's half has its own put there.
    """

    def __init__(
        self,
        files: DiskFiles,
        num_bytes: int,
        sizes: Mapping[bytes, int],
        buffers: Callable[[Place], Buffers],
        most_pages: int,
    ) -> None:
        """Take note of what an earlier engine has left.

        Args:
            num_bytes: What all files may take.
            sizes: Bytes of a file by kind.
            buffers: Pages -> their memory.
            most_pages: So many pages wait for being written; more is not written.
        """
        self._files, self._sizes, self._buffers = files, sizes, buffers
        self._index = DiskIndex(num_bytes, sizes)
        self._most_pages = most_pages
        self.counts = TierCounts()
        self._rows, self._tails = StoreThread(0), StoreThread(0)
        self._readers = [StoreThread(0) for _ in range(_NUM_READERS)]
        self._next_reader = 0
        self._done: deque[Done] = deque()
        self._pending: dict[bytes, int] = {}  # to be written -> pages
        self._num_pending = 0  # pages
        self._superseded: set[bytes] = set()
        self._epoch = 0
        self._paused_until = 0.0
        self._closes = threading.Event()
        for key, generation in files.objects():
            self._index.add(key, generation)
        self._give_up()

    def contains(self, key: bytes) -> bool:
        """Whether an object can be read."""
        return key in self._index and time.monotonic() >= self._paused_until

    @property
    def num_objects(self) -> int:
        """Objects on the disk."""
        return len(self._index)

    @property
    def used_bytes(self) -> int:
        """Bytes on the disk."""
        return self._index.used_bytes

    def write(self, key: bytes, place: Place) -> bool:
        """Write an object soon; return whether its pages must stay as they are until it is done."""
        if key in self._index or key in self._pending:
            return False
        num_pages = len(pages_in(place))
        is_behind = self._num_pending + num_pages > self._most_pages
        if is_behind or time.monotonic() < self._paused_until:
            self.counts.disk_not_written += 1
            return False
        self._pending[key] = num_pages
        self._num_pending += num_pages
        self._superseded.discard(key)
        is_tail = key[:1] == TAIL
        due = time.monotonic() + (SETTLE_S if is_tail else 0.0)
        write = partial(self._write, key, self._buffers(place), due, self._epoch)
        self._thread_of(key).call(write)
        return True

    def _write(self, key: bytes, buffers: Buffers, due: float, epoch: int) -> None:
        """Write an object, on a thread."""
        generation = None
        self._closes.wait(max(due - time.monotonic(), 0.0))
        try:
            if key not in self._superseded and epoch == self._epoch:
                generation = self._files.write(key, buffers)
        except OSError as error:
            if epoch == self._epoch:
                self._pause(f"nothing can be written: {error}")
        finally:
            self._done.append(Done(key, False, generation, epoch))

    def read(self, key: bytes, place: Place) -> None:
        """Read an object into pages, which must stay its own until it is done."""
        generation, epoch = self._index.generation(key), self._epoch
        assert generation is not None, "only what is contained is read"
        self._next_reader = (self._next_reader + 1) % _NUM_READERS
        buffers = self._buffers(place)
        reader = self._readers[self._next_reader]
        reader.call(partial(self._read, key, generation, buffers, epoch))

    def _read(self, key: bytes, generation: str, buffers: Buffers, epoch: int) -> None:
        """Read an object, on a thread."""
        found = None
        try:
            found = self._files.read(key, generation, buffers)
        except OSError as error:
            logger.warning("tier: an object on the disk cannot be read: %s", error)
        finally:
            self._done.append(Done(key, True, found, epoch))

    def late(self) -> None:
        """A read has taken too long."""
        self._pause("a read took too long")

    def _pause(self, why: str) -> None:
        if time.monotonic() >= self._paused_until:
            self.counts.disk_pauses += 1
            logger.warning("tier: disk: %s; it is left alone for %.0f s", why, _PAUSE_S)
        self._paused_until = time.monotonic() + _PAUSE_S

    def supersede(self, key: bytes) -> None:
        """Another object has taken the place of this one: it goes first, and is not written."""
        if key in self._pending:
            self._superseded.add(key)
        self._index.forget_first(key)

    def forget(self, key: bytes) -> None:
        """What was read is not what was written."""
        if (generation := self._index.remove(key)) is not None:
            self._remove(key, generation)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that objects were used, here or in memory, the last one of them last."""
        self._index.touch(keys)

    def take_done(self) -> tuple[list[Done], list[bytes]]:
        """Return what has ended since the last call, and what was given up for others."""
        ended: list[Done] = []
        while self._done:
            done = self._done.popleft()
            ended.append(done)
            self._take_in(done)
        return ended, self._give_up() if ended else []

    def _take_in(self, done: Done) -> None:
        key, is_read, generation, epoch = done
        if not is_read:
            self._num_pending -= self._pending.pop(key)
            if generation is None:
                self.counts.disk_not_written += key not in self._superseded
            self._superseded.discard(key)
        elif generation is None:
            self.counts.disk_not_read += 1
        if epoch != self._epoch:
            return  # it went with everything else
        if generation is not None:
            size = self._sizes[key[:1]]
            self.counts.disk_written_bytes += 0 if is_read else size
            self.counts.disk_read_bytes += size if is_read else 0
            self._index.add(key, generation)
        elif is_read:
            self.forget(key)

    def _give_up(self) -> list[bytes]:
        victims = self._index.victims()
        self.counts.disk_evicted += len(victims)
        for key, generation in victims:
            self._remove(key, generation)
        return [key for key, _ in victims]

    def _remove(self, key: bytes, generation: str) -> None:
        """Remove a file, in front of whatever is written under its name from now on."""
        self._thread_of(key).call(partial(self._files.remove, key, generation))

    def _thread_of(self, key: bytes) -> StoreThread:
        """Return the thread of all that is done to an object's name, one after the other."""
        return self._tails if key[:1] == TAIL else self._rows

    def clear(self) -> list[bytes]:
        """Forget everything at once; return what it was.

        Raises:
            OSError: The disk fails, so the next engine would find it again.
        """
        self._epoch += 1
        trash = self._files.clear()
        self._rows.call(partial(remove_trash, trash))
        return self._index.clear()

    def close(self, seconds: float) -> None:
        """Write what waits, for so long at most, and let go of the disk."""
        self._closes.set()
        ends = time.monotonic() + seconds
        last: list[tuple[StoreThread, Future[None]]] = [
            (thread, thread.call(lambda: None)) for thread in (self._rows, self._tails)
        ]
        for thread, call in last:
            thread.has_ended(call, max(ends - time.monotonic(), 0.0))
        self._files.close()
