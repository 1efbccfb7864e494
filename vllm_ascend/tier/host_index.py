# SPDX-License-Identifier: Apache-2.0
"""Backend ``host``, the scheduler's half: what is in which pages, and what is given up first.

The scheduler alone decides what is where; workers read and write the pages that they are told.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence

from vllm_ascend.tier.host_memory import PAGE_NUMBER_BYTES, Place, pages_in, place_of
from vllm_ascend.tier.layout import ROWS, TAIL
from vllm_ascend.tier.objects import HEADER_BYTES, Gone
from vllm_ascend.tier.tail_choice import KEPT

_MOST_PAGES_PER_OBJECT = 16
_ALIGNMENT = 64


class HostIndex:
    """What is in the memory of one engine: the scheduler's half of the backend.

    An object is written once, can be loaded from then on, and is dead when it is found unusable:
    then nobody finds it any more, and it goes with its last user. Objects wait in one queue per
    rank, those used last at its end; the lowest rank goes first, and nothing takes the place of a
    higher rank than its own.

    There are hundreds of thousands, and a step adds hundreds. What is known of them are numbers and
    bytes by key: an object of Python's for each would be what its garbage collector walks through,
    and what wakes it.

    Attributes:
        page_bytes: Bytes of a page.
        num_pages: Pages in all.
        num_evicted: Objects given up so far, by kind (first byte of the key).
    """

    is_remote = False

    def __init__(self, num_bytes: int, object_bytes: Sequence[int], num_parts: int = 1) -> None:
        """Divide memory into pages.

        Args:
            num_bytes: All memory.
            object_bytes: Bytes of a part of each kind of object, without the header.
            num_parts: Parts of an object.

        Raises:
            ValueError: The memory does not hold one object of each kind.
        """
        sizes = [size for size in object_bytes if size > 0]
        self.page_bytes = page_bytes([size + HEADER_BYTES for size in sizes])
        self.num_pages = num_bytes // self.page_bytes
        if self.num_pages < sum(self.pages_of(size, num_parts) for size in sizes):
            raise ValueError(
                f'--kv-transfer-config: "gib" is too small: {num_bytes:,} bytes do not hold one '
                f"object of {max(sizes):,} bytes and those beside it"
            )
        self._places: dict[bytes, Place] = {}
        self._ranks: dict[bytes, int] = {}
        # Loads and stores under way, of objects that have any: their pages must not change hands.
        self._num_users: dict[bytes, int] = {}
        self._writing: set[bytes] = set()  # its writer is one of its users
        self._dead: set[bytes] = set()
        self._queues: tuple[OrderedDict[bytes, None], ...] = tuple(
            OrderedDict() for _ in range(KEPT + 1)
        )
        self._free = list(range(self.num_pages - 1, -1, -1))
        self.num_evicted = {ROWS: 0, TAIL: 0}
        self._gone: list[bytes] = []
        self._num_evicted = 0  # of them

    def is_known(self, key: bytes) -> bool:
        """Whether an object is stored, being stored, or still in use."""
        return key in self._places

    @property
    def known(self) -> Container[bytes]:
        """The objects of which :meth:`is_known` says so."""
        return self._places

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Return for each key whether its object can be loaded."""
        places, writing, dead = self._places, self._writing, self._dead
        return [key in places and key not in writing and key not in dead for key in keys]

    def place(self, key: bytes) -> Place:
        """Return the pages of a known object."""
        return self._places[key]

    def has_room(self, num_bytes: int, num_parts: int, rank: int) -> bool:
        """Whether enough is free for an object, or something may be given up for it."""
        if len(self._free) >= self.pages_of(num_bytes, num_parts):
            return True
        return any(self._queues[: rank + 1])

    @property
    def num_used_pages(self) -> int:
        """Pages that hold something."""
        return self.num_pages - len(self._free)

    def pages_of(self, num_bytes: int, num_parts: int) -> int:
        """Return the pages of an object; a part has so many bytes, without its header."""
        return num_parts * -(-(num_bytes + HEADER_BYTES) // self.page_bytes)

    def reserve(
        self, keys: Sequence[bytes], num_bytes: int, num_parts: int = 1, rank: int = KEPT
    ) -> list[Place]:
        """Return pages for new objects, for as many of the first ones as there is room.

        What was used least recently is given up for them, of lower ranks first. The pages stay
        reserved until :meth:`stored` or :meth:`drop`.

        Args:
            keys: None of them is known.
            num_bytes: Bytes of a part, without its header.
            num_parts: Parts that workers store, each with a header; the pages of the first come
                first.
            rank: That of the objects.
        """
        num_pages = self.pages_of(num_bytes, num_parts)
        places, free, queue = [], self._free, self._queues[rank]
        for key in keys[: self._make_room(num_pages, len(keys), rank)]:
            place = self._places[key] = place_of(free[-num_pages:])
            del free[-num_pages:]
            places.append(place)
            self._ranks[key], self._num_users[key] = rank, 1
            self._writing.add(key)
            queue[key] = None
        return places

    def _make_room(self, num_pages: int, num_objects: int, rank: int) -> int:
        """Give up what objects of so many pages need; return for how many there is room."""
        victims: list[bytes] = []
        room, wanted = len(self._free), num_pages * num_objects
        for key in itertools.chain.from_iterable(self._queues[: rank + 1]):
            if room >= wanted:
                break
            if key not in self._num_users:
                victims.append(key)
                room += len(self._places[key]) // PAGE_NUMBER_BYTES
        num_objects = min(room // num_pages, num_objects)
        for key in victims:
            if len(self._free) >= num_pages * num_objects:
                break
            self._remove(key)
            self._given_up(key)
        return num_objects

    def _given_up(self, key: bytes) -> None:
        self.num_evicted[key[:1]] += 1
        self._num_evicted += 1
        self._gone.append(key)

    def _remove(self, key: bytes) -> None:
        del self._queues[self._ranks.pop(key)][key]
        self._free.extend(pages_in(self._places.pop(key)))
        self._dead.discard(key)

    def stored(self, key: bytes) -> None:
        """An object was written: from now on it can be loaded."""
        self._writing.discard(key)
        self.release((key,))

    def drop(self, key: bytes, *, by_writer: bool = False) -> None:
        """An object was not written (``by_writer``), or cannot be used: nobody finds it any more.

        Its pages are given back when its last user has let go of it.
        """
        if key not in self._places:
            return
        if key not in self._writing and key not in self._dead:
            self._gone.append(key)
        self._writing.discard(key)
        self._dead.add(key)
        if by_writer:
            self.release((key,))
        elif key not in self._num_users:
            self._remove(key)

    def use(self, keys: Iterable[bytes]) -> list[Place]:
        """Hold objects that can be loaded until they are released; return where they are.

        They are kept from now on, whatever their rank was.
        """
        places, num_users = [], self._num_users
        for key in keys:
            places.append(self._places[key])
            num_users[key] = num_users.get(key, 0) + 1
            if (rank := self._ranks[key]) != KEPT:
                del self._queues[rank][key]
                self._ranks[key], self._queues[KEPT][key] = KEPT, None
        return places

    def release(self, keys: Iterable[bytes]) -> None:
        """Let go of objects that were held."""
        num_users = self._num_users
        for key in keys:
            left = num_users.pop(key) - 1
            if left:
                num_users[key] = left
            elif key in self._dead:
                self._remove(key)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that objects were used, the last one of them last."""
        ranks, to_end = self._ranks, [queue.move_to_end for queue in self._queues]
        for key in keys:
            if key in ranks:
                to_end[ranks[key]](key)

    def forget_first(self, key: bytes) -> None:
        """Give an object up before all others: another one has taken its place."""
        if key in self._ranks:
            del self._queues[self._ranks[key]][key]
            self._ranks[key], self._queues[0][key] = 0, None
            self._queues[0].move_to_end(key, last=False)

    def clear(self) -> bool:
        """Forget everything, and return that it is done.

        An object in use leaves the memory when its last user has ended.
        """
        for key in list(self._places):
            self.drop(key)
        return True

    def take_gone(self) -> Gone:
        """Return what has left since the last call."""
        gone = Gone(self._gone, self._num_evicted)
        self._gone, self._num_evicted = [], 0
        return gone

    def check_integrity(self) -> None:
        """Check that every page is free or one object's. For tests and replays."""
        held = [page for key in self._places for page in pages_in(self.place(key))]
        assert sorted(held + self._free) == list(range(self.num_pages))
        assert all(number > 0 for number in self._num_users.values())
        assert self._writing | self._dead <= self._num_users.keys() <= self._places.keys()
        queued = {key: rank for rank, queue in enumerate(self._queues) for key in queue}
        assert queued == self._ranks and queued.keys() == self._places.keys()


def page_bytes(object_bytes: Sequence[int]) -> int:
    """Return the bytes of a page with which the least of the largest object's pages is wasted.

    The smallest kind of object fills its pages.
    """
    smallest, largest = min(object_bytes), max(object_bytes)
    sizes = [
        -(-smallest // parts // _ALIGNMENT) * _ALIGNMENT
        for parts in range(1, _MOST_PAGES_PER_OBJECT + 1)
    ]

    def bytes_taken(size: int) -> int:
        return sum(-(-wanted // size) * size for wanted in (smallest, largest))

    return min(sizes, key=lambda size: (bytes_taken(size), -size))
