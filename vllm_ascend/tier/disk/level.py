# SPDX-License-Identifier: Apache-2.0
"""A disk as the scheduler sees it: what is asked of it, and what has become of that."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from vllm_ascend.tier.disk.index import DiskIndex
from vllm_ascend.tier.disk.others import Change
from vllm_ascend.tier.disk.threads import DiskWork
from vllm_ascend.tier.host_memory import Place, pages_in
from vllm_ascend.tier.layout import TAIL
from vllm_ascend.tier.statistics import TierCounts

logger = logging.getLogger("vllm.vllm_ascend.tier")

SETTLE_S = 5.0
"""So long a tail waits before it is written: the last one of an answer takes the place of the one
before, so most never need to be."""
_PAUSE_S = 30.0
_WEAR_TOLD_EVERY_S = 3600.0


class Done(NamedTuple):
    """A write or a read that has ended.

    Attributes:
        is_read: Which.
        generation: Where the object is; ``None``: it was not written, or could not be read.
        epoch: How often everything had been forgotten when it was asked for.
        why_not: What went wrong, if anything did.
    """

    key: bytes
    is_read: bool
    generation: str | None
    epoch: int
    why_not: str


class DiskLevel:
    """A disk as the scheduler sees it. All methods are the scheduler's thread's.

    Attributes:
        counts: Where it counts; the scheduler's half has its own put there.
        work: What is done beside the steps.
    """

    def __init__(
        self,
        work: DiskWork,
        num_bytes: int,
        sizes: Mapping[bytes, int],
        most_pages: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take note of what an earlier engine has left.

        Args:
            num_bytes: What all files may take.
            sizes: Bytes of a file by kind.
            most_pages: So many pages wait for being written; more is not written.
        """
        self.work, self._sizes, self._clock = work, sizes, clock
        self._index = DiskIndex(num_bytes, sizes)
        self._most_pages = most_pages
        self.counts = TierCounts()
        self._done: deque[Done] = deque()
        self._pending: dict[bytes, int] = {}  # to be written -> pages
        self._num_pending = 0  # pages
        self._superseded: set[bytes] = set()
        # What others have written after a reset of theirs or ours: it is counted, and not read.
        self._changes: deque[Change] = deque()
        self._distrusted: set[bytes] = set()
        self._epoch = 0
        self._paused_until = 0.0
        self._wear_told, self._written_bytes = clock(), 0  # since then
        for key, generation in work.begin(self._changes.append):
            self._found(key, generation)
        self._give_up()

    def contains(self, key: bytes) -> bool:
        """Whether an object can be read."""
        return self.has_file(key) and self._clock() >= self._paused_until

    def has_file(self, key: bytes) -> bool:
        """Whether an object is there, also while the disk is left alone."""
        return key in self._index and key not in self._distrusted

    def is_pending(self, key: bytes) -> bool:
        """Whether an object is still to be written."""
        return key in self._pending

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
        if self.has_file(key) or key in self._pending:
            return False
        num_pages = len(pages_in(place))
        is_behind = self._num_pending + num_pages > self._most_pages
        if is_behind or self._clock() < self._paused_until:
            self.counts.disk_not_written += 1
            return False
        self._pending[key] = num_pages
        self._num_pending += num_pages
        self._superseded.discard(key)
        due = self._clock() + (SETTLE_S if key[:1] == TAIL else 0.0)
        is_wanted = partial(self._is_wanted, key, self._epoch)
        self.work.write(key, place, due, is_wanted, partial(self._ended, key, False, self._epoch))
        return True

    def _is_wanted(self, key: bytes, epoch: int) -> bool:
        """Whether a write is still to be done; asked by any thread."""
        return key not in self._superseded and epoch == self._epoch

    def _ended(
        self, key: bytes, is_read: bool, epoch: int, generation: str | None, why_not: str
    ) -> None:
        """A write or a read has ended; told by any thread."""
        self._done.append(Done(key, is_read, generation, epoch, why_not))

    def read(self, key: bytes, place: Place) -> None:
        """Read an object into pages, which must stay its own until it is done."""
        generation = self._index.generation(key)
        assert generation is not None, "only what is contained is read"
        self.work.read(key, generation, place, partial(self._ended, key, True, self._epoch))

    def late(self) -> None:
        """A read has taken too long."""
        self._pause("a read took too long")

    def _pause(self, why: str) -> None:
        if self._clock() >= self._paused_until:
            self.counts.disk_pauses += 1
            logger.warning("tier: disk: %s; it is left alone for %.0f s", why, _PAUSE_S)
        self._paused_until = self._clock() + _PAUSE_S

    def supersede(self, key: bytes) -> None:
        """Another object has taken the place of this one: it goes first, and is not written."""
        if key in self._pending:
            self._superseded.add(key)
        self._index.forget_first(key)

    def forget(self, key: bytes) -> None:
        """What was read is not what was written."""
        self._distrusted.discard(key)
        if (generation := self._index.remove(key)) is not None:
            self.work.remove(key, generation)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that objects were used, here or in memory, the last one of them last."""
        self._index.touch(keys)

    def take_done(self) -> tuple[list[Done], list[bytes]]:
        """Return what has ended since the last call, and what is not there any more."""
        ended: list[Done] = []
        gone: list[bytes] = []
        has_others = bool(self._changes)
        while self._changes:
            gone += self._follow(self._changes.popleft())
        while self._done:
            done = self._done.popleft()
            ended.append(done)
            self._take_in(done)
        self._tell_wear()
        if ended or has_others:
            gone += self._give_up()
        return ended, gone

    def _follow(self, change: Change) -> list[bytes]:
        """Take in what other engines have done; return what is not there any more."""
        gone = [key for key, where in change.gone if self._index.generation(key) == where]
        for key in gone:
            self._index.remove(key)
            self._distrusted.discard(key)
        for key, generation in change.found:
            if not change.is_trusted and self._index.generation(key) != generation:
                self._distrusted.add(key)
            self._found(key, generation)
        return [key for key in gone if key not in self._index]

    def _found(self, key: bytes, generation: str) -> None:
        """Note a file. Of two with one object the older one goes."""
        known = self._index.generation(key) or generation
        self._index.add(key, max(known, generation))
        if known != generation:
            self.work.remove(key, min(known, generation))

    def _take_in(self, done: Done) -> None:
        key, is_read, generation, epoch, why_not = done
        if not is_read:
            self._num_pending -= self._pending.pop(key)
            if generation is None:
                self.counts.disk_not_written += key not in self._superseded
            if why_not and epoch == self._epoch:
                self._pause(f"nothing can be written: {why_not}")
            self._superseded.discard(key)
        elif generation is None:
            self.counts.disk_not_read += 1
            logger.warning("tier: an object on the disk cannot be read: %s", why_not)
        if epoch != self._epoch:
            return  # it went with everything else
        if generation is not None:
            size = self._sizes[key[:1]]
            if is_read:
                self.counts.disk_read_bytes += size
            else:
                self.counts.disk_written_bytes += size
                self._written_bytes += size
            if (other := self._index.generation(key)) not in (None, generation):
                self.work.remove(key, other)  # of another engine, or from where it was read
            self._index.add(key, generation)
            self._distrusted.discard(key)
        elif is_read:
            self.forget(key)

    def _tell_wear(self) -> None:
        """Tell now and then what is written: a disk is worn out by it."""
        seconds = self._clock() - self._wear_told
        if seconds < _WEAR_TOLD_EVERY_S:
            return
        if written := self._written_bytes:
            words = "tier: disk: %.1f GB written in %.1f h, %.2f TB a day at this rate"
            logger.info(words, written / 1e9, seconds / 3600, written / 1e12 * 86400 / seconds)
        self._wear_told, self._written_bytes = self._clock(), 0

    def _give_up(self) -> list[bytes]:
        victims = self._index.victims()
        self.counts.disk_evicted += len(victims)
        for key, generation in victims:
            self._distrusted.discard(key)
            self.work.remove(key, generation)
        return [key for key, _ in victims]

    def clear(self) -> list[bytes]:
        """Forget everything at once; return what it was.

        Raises:
            OSError: The disk fails, so the next engine would find it again.
        """
        self._epoch += 1
        self.work.clear()
        self._distrusted.clear()
        return self._index.clear()

    def close(self, seconds: float) -> None:
        """Write what waits, for so long at most, and let go of the disk."""
        self.work.close(seconds)
