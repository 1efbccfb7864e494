# SPDX-License-Identifier: Apache-2.0
"""Backend ``host`` with a disk below: what is stored goes there too, and comes up when it is used.

So what falls out of memory is on the disk already. Spare tails, most of which nobody ever asks for,
would wear it out: all but those furthest apart go there once a hit has taken them. Until then
memory alone has them, so there they do not give way to what the disk has: what was used least
recently goes, whatever its rank. An object that comes up has pages at once and its bytes later:
loads of it wait.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from vllm_ascend.tier.disk.level import DiskLevel
from vllm_ascend.tier.host_index import HostIndex
from vllm_ascend.tier.host_memory import Place
from vllm_ascend.tier.layout import ROWS, TAIL
from vllm_ascend.tier.objects import Gone, Levels
from vllm_ascend.tier.statistics import TierCounts
from vllm_ascend.tier.tail_choice import FAR_APART, KEPT


class NothingBelow:
    """In the place of :class:`MemoryOverDisk` where there is no disk: nothing waits for one."""

    has_disk = False

    def count_in(self, counts: TierCounts) -> None:
        """Nothing is counted."""

    def are_in_memory(self, keys: Sequence[bytes]) -> bool:
        """Return that nobody waits."""
        return True

    def are_read(self, keys: Iterable[bytes]) -> bool:
        """Return that nobody waits."""
        return True

    def settle(self) -> None:
        """Nothing was done."""

    def late(self) -> None:
        """Nothing was waited for."""

    def close(self, seconds: float) -> None:
        """Nothing is held."""


class MemoryOverDisk(HostIndex):
    """What is in the memory of one engine, and below it.

    Attributes:
        disk: What is below; set before the first step.
    """

    has_disk = True
    disk: DiskLevel

    def __init__(self, num_bytes: int, object_bytes: Sequence[int], num_parts: int = 1) -> None:
        """Divide memory into pages; see :class:`HostIndex`."""
        super().__init__(num_bytes, object_bytes, num_parts)
        self._num_parts = num_parts
        self._sizes = dict(zip((ROWS, TAIL), object_bytes, strict=True))
        self._spares: set[bytes] = set()  # in memory alone
        # On their way up: the disk is one of their users.
        self._reading: set[bytes] = set()
        self._moved: dict[bytes, None] = {}

    @property
    def file_bytes(self) -> dict[bytes, int]:
        """Bytes of a file by kind of object: its pages, whole."""
        return {
            kind: self.pages_of(size, self._num_parts) * self.page_bytes
            for kind, size in self._sizes.items()
        }

    def has_room(self, num_bytes: int, num_parts: int, rank: int) -> bool:
        """Whether enough is free for an object, or something may be given up for it."""
        return super().has_room(num_bytes, num_parts, KEPT)

    def reserve(
        self, keys: Sequence[bytes], num_bytes: int, num_parts: int = 1, rank: int = KEPT
    ) -> list[Place]:
        """Return pages for new objects; see :meth:`HostIndex.reserve`.

        Args:
            rank: Says whether the disk takes them at once.
        """
        places = super().reserve(keys, num_bytes, num_parts)
        if rank < FAR_APART:
            self._spares.update(keys[: len(places)])
        return places

    def _remove(self, key: bytes) -> None:
        super()._remove(key)
        self._spares.discard(key)

    def is_known(self, key: bytes) -> bool:
        """Whether an object is stored, being stored, or still in use."""
        return super().is_known(key) or self.disk.contains(key)

    @property
    def known(self) -> Container[bytes]:
        """The objects of which :meth:`is_known` says so."""
        return _Either(super().known, self.disk)

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Return for each key whether its object can be loaded."""
        places, on_disk = self._places, self.disk.contains
        return [
            there or (key not in places and on_disk(key))
            for key, there in zip(keys, super().contains(keys), strict=True)
        ]

    def are_in_memory(self, keys: Sequence[bytes]) -> bool:
        """Whether objects can all be loaded without the disk."""
        return all(super().contains(keys)) and self.are_read(keys)

    def are_read(self, keys: Iterable[bytes]) -> bool:
        """Whether loads of objects that are held need not wait for the disk any more."""
        return self._reading.isdisjoint(keys)

    def stored(self, key: bytes) -> None:
        """An object was written: from now on it can be loaded. The disk takes it, if no spare."""
        is_new = key in self._writing and key not in self._spares
        if is_new and self.disk.write(key, self.place(key)):
            self._writing.discard(key)  # it is held until the disk has it
        else:
            super().stored(key)
        self._moved[key] = None

    def drop(self, key: bytes, *, by_writer: bool = False) -> None:
        """An object was not written (``by_writer``), or cannot be used: nobody finds it any more.

        Of one that is on its way up nobody has seen the bytes yet: it stays on the disk.
        """
        if key in self._reading:
            self._dead.add(key)
            return
        self._moved[key] = None
        if not by_writer and self._places.get(key):  # without pages it says nothing of the disk
            self.disk.forget(key)
        super().drop(key, by_writer=by_writer)

    def use(self, keys: Iterable[bytes]) -> list[Place]:
        """Hold objects that can be loaded, and have those come up that are below.

        See :meth:`HostIndex.use`.
        """
        wanted = list(keys)
        spares = [key for key in wanted if key in self._spares]
        missing = [key for key in wanted if key not in self._places]
        # Those that are here first, or what comes up would take their place.
        here = iter(super().use(key for key in wanted if key in self._places))
        below = self._bring_up(missing)
        for key in spares:
            if self.disk.write(key, self._places[key]):
                self._num_users[key] += 1  # the disk
                self._spares.discard(key)
        return [below[key] if key in below else next(here) for key in wanted]

    def _bring_up(self, keys: Sequence[bytes]) -> dict[bytes, Place]:
        """Give objects pages, and have them filled. Without room a load finds nothing."""
        found: dict[bytes, Place] = {}
        self._moved.update(dict.fromkeys(keys))
        for kind, size in self._sizes.items():
            if not (own := [key for key in keys if key[:1] == kind]):
                continue
            places = self.reserve(own, size, self._num_parts)
            for key, place in zip(own, places, strict=False):
                self._writing.discard(key)
                self._reading.add(key)
                self._num_users[key] = 2  # the load, and the disk
                self.disk.read(key, place)
                found[key] = place
            for key in own[len(places) :]:
                found[key] = self._places[key] = b""
                self._ranks[key], self._num_users[key] = KEPT, 1
                self._queues[KEPT][key] = None
                self._dead.add(key)
        return found

    def settle(self) -> None:
        """Take in what the disk has done since the last call."""
        done, given_up = self.disk.take_done()
        for key, is_read, generation, *_ in done:
            if is_read:
                self._reading.discard(key)
                if generation is None:
                    self._dead.add(key)
                    self._gone.append(key)
            self._moved[key] = None
            self.release((key,))
        self._moved.update(dict.fromkeys(given_up))
        for key in given_up:
            if key not in self._places:
                super()._given_up(key)

    def _given_up(self, key: bytes) -> None:
        self._moved[key] = None
        if not self.disk.contains(key):
            super()._given_up(key)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that objects were used, the last one of them last."""
        used = list(keys)
        super().touch(used)
        self.disk.touch(used)

    def forget_first(self, key: bytes) -> None:
        """Give an object up before all others: another one has taken its place."""
        self.disk.supersede(key)
        super().forget_first(key)

    def clear(self) -> bool:
        """Forget everything, and return that it is done.

        Raises:
            OSError: The disk fails, so the next engine would find what is on it.
        """
        on_disk = self.disk.clear()
        self._moved.update(dict.fromkeys(on_disk))
        self._gone += [key for key in on_disk if key not in self._places]
        return super().clear()

    def take_gone(self) -> Gone:
        """Return what has left since the last call, and what has moved."""
        keys, num_evicted, _ = super().take_gone()
        moved = {key: self._levels(key) for key in self._moved}
        self._moved.clear()
        return Gone(keys, num_evicted, moved)

    def _levels(self, key: bytes) -> Levels:
        is_moving = key in self._reading or self.disk.is_pending(key)
        return Levels(self.are_in_memory([key]), self.disk.has_file(key), is_moving)

    def count_in(self, counts: TierCounts) -> None:
        """Say where it is counted what the disk does."""
        self.disk.counts = counts

    def late(self) -> None:
        """A read has taken too long."""
        self.disk.late()

    def close(self, seconds: float) -> None:
        """Let go of the disk; what waits is written, for so long at most."""
        self.disk.close(seconds)


class _Either(Container[bytes]):
    """What is in memory, or below it."""

    def __init__(self, here: Container[bytes], disk: DiskLevel) -> None:
        self._here, self._disk = here, disk

    def __contains__(self, key: object) -> bool:
        return key in self._here or (isinstance(key, bytes) and self._disk.contains(key))
