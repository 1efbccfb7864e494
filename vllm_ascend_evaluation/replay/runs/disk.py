# SPDX-License-Identifier: Apache-2.0
"""A disk below the memory of tiers in a replay: the real index of it, over files without bytes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol

from vllm_ascend.tier.backends import SchedulerBackend, most_waiting
from vllm_ascend.tier.connector import GranuleTierConnector
from vllm_ascend.tier.disk.level import DiskLevel
from vllm_ascend.tier.disk.others import Change
from vllm_ascend.tier.disk.threads import Ended
from vllm_ascend.tier.host_memory import HostMemory, Place
from vllm_ascend.tier.layout import ROWS
from vllm_ascend.tier.memory_over_disk import MemoryOverDisk
from vllm_ascend.tier.orders import Load
from vllm_ascend_evaluation.replay.runs.clock import VirtualClock

_GIB = 1 << 30


class Pages(Protocol):
    """What the pages of the memory above hold, if a replay verifies."""

    def contents(self, place: Place) -> Any:
        """Return what an object's pages hold."""
        ...

    def fill(self, place: Place, contents: Any) -> None:
        """Put what an object holds into its pages."""
        ...


@dataclass(order=True)
class _Move:
    """An object to be written or read.

    Attributes:
        due_s: Not before.
        move: Does it; returns whether the disk had to.
    """

    due_s: float
    number: int
    seconds: float = field(compare=False)
    move: Callable[[], bool] = field(compare=False)


class ModelledDisk:
    """A disk that moves one object after the other. It outlives the engines above, who share it.

    Attributes:
        num_rows_read: Objects with rows that came up.
        sizes: Bytes of a file by kind; set before the first is written.
        unit: Tokens of an object with rows; set as well.
        ranks: The engines above.
    """

    def __init__(self, clock: VirtualClock, gib: float, gib_per_second: float) -> None:
        self.clock, self.gib = clock, gib
        self._bytes_per_s = gib_per_second * _GIB
        self.sizes: Mapping[bytes, int] = {}
        self.ranks: list[DiskOfRank] = []
        self.num_rows_read = self.unit = 0
        self._files: dict[bytes, tuple[str, Any]] = {}  # those used least recently first
        self._moves: list[_Move] = []
        self._numbers = count()
        self._free_at_s = 0.0
        clock.tell(self._go_on)

    def objects(self) -> Iterable[tuple[bytes, str]]:
        """Return (key, generation) of all files, those used least recently first."""
        return [(key, generation) for key, (generation, _) in self._files.items()]

    def push(self, key: bytes, due_s: float, move: Callable[[], bool]) -> None:
        """Have an object moved once the disk gets to it, and not before a time."""
        seconds = self.sizes[key[:1]] / self._bytes_per_s
        heapq.heappush(self._moves, _Move(due_s, next(self._numbers), seconds, move))

    def write(self, key: bytes, held: Any, rank: DiskOfRank) -> str:
        """Write a file; return its generation."""
        generation = self._put(key, held)
        self._tell(rank, Change([], [(key, generation)], is_trusted=True))
        return generation

    def read(self, key: bytes, generation: str, rank: DiskOfRank) -> tuple[str, Any] | None:
        """Read a file; return its generation now, and what it holds; ``None``: it is gone."""
        found, held = self._files.get(key, ("", None))
        if found != generation:
            return None
        self.num_rows_read += key[:1] == ROWS
        moved_to = self._put(key, held)
        self._tell(rank, Change([(key, generation)], [(key, moved_to)], is_trusted=True))
        return moved_to, held

    def _tell(self, rank: DiskOfRank, change: Change) -> None:
        for other in self.ranks:
            if other is not rank:
                other.tell(change)

    def _put(self, key: bytes, held: Any) -> str:
        self._files.pop(key, None)
        generation = f"{next(self._numbers):012}"
        self._files[key] = generation, held
        return generation

    def _go_on(self) -> None:
        """Do what the disk has had the time for."""
        while self._moves:
            first = self._moves[0]
            starts = max(first.due_s, self._free_at_s)
            if starts + first.seconds > self.clock.now_s:
                return
            heapq.heappop(self._moves)
            self._free_at_s = starts + first.seconds if first.move() else starts

    def remove(self, key: bytes, generation: str, rank: DiskOfRank) -> None:
        """Remove a file, if another engine has not been faster."""
        if self._files.get(key, ("", None))[0] == generation:
            del self._files[key]
            self._tell(rank, Change([(key, generation)], [], is_trusted=True))

    def clear(self) -> None:
        """Remove all files."""
        self._files.clear()

    def close(self, seconds: float) -> None:
        """Write what waits, for so long at most; the rest is lost, and nothing is read any more."""
        self.ranks.clear()
        ends_s = max(self._free_at_s, self.clock.now_s)
        until_s = ends_s + seconds
        for waiting in sorted(self._moves):
            if ends_s + waiting.seconds <= until_s and waiting.move():
                ends_s += waiting.seconds
        self._moves.clear()
        self.clock.num_awaited = 0


class DiskOfRank:
    """The disk as one engine has it; see ``DiskWork``.

    Attributes:
        pages: What is above, if that matters.
        tell: Told what others do.
    """

    def __init__(self, disk: ModelledDisk) -> None:
        self._disk = disk
        self.pages: Pages | None = None
        self.tell: Callable[[Change], None] = lambda change: None

    def begin(self, tell: Callable[[Change], None]) -> Iterable[tuple[bytes, str]]:
        """Return what is there, and tell from now on what others do."""
        self.tell = tell
        self._disk.ranks.append(self)
        return self._disk.objects()

    def write(
        self, key: bytes, place: Place, due: float, is_wanted: Callable[[], bool], ended: Ended
    ) -> None:
        """Write a file once the disk gets to it."""
        self._disk.push(key, due, partial(self._write, key, place, is_wanted, ended))

    def _write(self, key: bytes, place: Place, is_wanted: Callable[[], bool], ended: Ended) -> bool:
        if not is_wanted():
            ended(None, "")
            return False
        held = None if self.pages is None else self.pages.contents(place)
        ended(self._disk.write(key, held, self), "")
        return True

    def read(self, key: bytes, generation: str, place: Place, ended: Ended) -> None:
        """Read a file once the disk gets to it."""
        clock = self._disk.clock
        clock.num_awaited += 1
        self._disk.push(key, clock.now_s, partial(self._read, key, generation, place, ended))

    def _read(self, key: bytes, generation: str, place: Place, ended: Ended) -> bool:
        self._disk.clock.num_awaited -= 1
        found = self._disk.read(key, generation, self)
        if found is None:
            ended(None, "it is gone")
            return False
        if self.pages is not None:
            self.pages.fill(place, found[1])
        ended(found[0], "")
        return True

    def remove(self, key: bytes, generation: str) -> None:
        """Remove a file."""
        self._disk.remove(key, generation, self)

    def clear(self) -> None:
        """Remove all files."""
        self._disk.clear()

    def close(self, seconds: float) -> None:
        """Write what waits, for so long at most."""
        self._disk.close(seconds)


class ReplayTierConnector(GranuleTierConnector):
    """The tier's connector over a modelled disk.

    Attributes:
        disk: Of the run in this process; set before an engine is built.
    """

    disk: ModelledDisk

    def _open_backend(self, num_parts: int) -> SchedulerBackend:
        layout, disk = self.layout, self.disk
        sizes = (layout.unit_bytes, layout.tail_bytes)
        index = MemoryOverDisk(int(self._settings.gib * _GIB), sizes, num_parts)
        disk.sizes, disk.unit = index.file_bytes, layout.unit
        index.disk = DiskLevel(
            DiskOfRank(disk), int(disk.gib * _GIB), disk.sizes, most_waiting(index), self._clock
        )
        return SchedulerBackend(index, *HostMemory.make(index.num_pages, index.page_bytes))

    def _clock(self) -> float:
        return self.disk.clock.now_s

    def get_kv_connector_stats(self) -> None:
        """Leave the counts to the replay."""


def cannot_be_loaded(load: Load, index: Any) -> bool:
    """Whether workers find that a load has no bytes: its pages had no room, or it waited in vain.

    Args:
        index: Of the tier.
    """
    has_pages = all(all(run.places) for run in load.runs)
    return not (has_pages and index.are_read(load.keys))
