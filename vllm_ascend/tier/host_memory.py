# SPDX-License-Identifier: Apache-2.0
"""The memory of backend ``host``: pages that the scheduler's process makes and workers open.

It is a file without a name, which workers open through the scheduler's process: it is gone when the
last of them has ended, however they end.
"""

from __future__ import annotations

import mmap
import os
import secrets
from array import array
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple, TypeAlias

import numpy as np

from vllm_ascend.tier.objects import Bytes, seal, why_unusable

Place: TypeAlias = bytes
"""The numbers of an object's pages, in order, as an array's bytes.

A load of a long prompt names thousands at once. Tuples would wake Python's garbage collector.
"""
_PAGE = "i"
PAGE_NUMBER_BYTES = array(_PAGE).itemsize


def place_of(pages: Sequence[int]) -> Place:
    """Return some pages as a place."""
    return array(_PAGE, pages).tobytes()


def pages_in(place: Place) -> Sequence[int]:
    """Return the pages of a place."""
    return array(_PAGE, place)


class MemoryAddress(NamedTuple):
    """Where the memory is, for workers on the same node.

    Attributes:
        process: That has made it.
        descriptor: Its file in that process.
        name: Of the file; nobody else's has it.
    """

    process: int
    descriptor: int
    num_pages: int
    page_bytes: int
    name: str


class ForeignMemoryError(OSError):
    """What an address leads to is not the memory that it names, or cannot be opened."""


class HostMemory:
    """The memory itself, as its owner made it or as a worker has opened it."""

    def __init__(self, descriptor: int, num_pages: int, page_bytes: int) -> None:
        self._mmap = mmap.mmap(descriptor, num_pages * page_bytes)
        self._pages = np.frombuffer(self._mmap, np.uint8).reshape(num_pages, page_bytes)

    @classmethod
    def make(cls, num_pages: int, page_bytes: int) -> tuple[HostMemory, MemoryAddress]:
        """Make new memory; return it, and where others find it."""
        name = f"granule-tier-{secrets.token_hex(16)}"
        descriptor = os.memfd_create(name)
        os.ftruncate(descriptor, num_pages * page_bytes)
        address = MemoryAddress(os.getpid(), descriptor, num_pages, page_bytes, name)
        return cls(descriptor, num_pages, page_bytes), address

    @classmethod
    def open(cls, address: MemoryAddress) -> HostMemory:
        """Open what another process of this node has made.

        On another node the process of that number is somebody else. So nothing is opened that does
        not bear the name, and nothing is mapped that has another size.

        Raises:
            ForeignMemoryError: It is somebody else's, or the process is gone.
        """
        process, descriptor, num_pages, page_bytes, name = address
        path = f"/proc/{process}/fd/{descriptor}"
        try:
            _check(path, name)
            opened = os.open(path, os.O_RDWR)
        except OSError as error:
            raise _not_ours(error) from error
        try:
            # Whose number it was may have changed in between.
            _check(f"/proc/self/fd/{opened}", name)
            if os.fstat(opened).st_size != num_pages * page_bytes:
                raise _not_ours("it has another size")
            return cls(opened, num_pages, page_bytes)
        finally:
            os.close(opened)

    def buffers(self, place: Place) -> list[memoryview]:
        """Return the pages of an object, in order."""
        return [self._pages[page].data for page in pages_in(place)]

    def write(self, place: Place, data: Bytes) -> None:
        """Write an object into its pages; the first one, with its header, last."""
        size, pages = self._pages.shape[1], pages_in(place)
        for i in range(len(pages) - 1, -1, -1):
            part = data[i * size : (i + 1) * size]
            self._pages[pages[i], : len(part)] = part

    def read(self, place: Place, target: Bytes) -> None:
        """Read an object from its pages."""
        size = self._pages.shape[1]
        for i, page in enumerate(pages_in(place)):
            part = target[i * size : (i + 1) * size]
            part[:] = self._pages[page, : len(part)]


def _check(path: str, name: str) -> None:
    found = os.readlink(path)
    if found.removesuffix(" (deleted)") != f"/memfd:{name}":
        raise _not_ours(f"{path} is {found}")


def _not_ours(why: object) -> ForeignMemoryError:
    return ForeignMemoryError(
        f"a worker does not find the tier's memory in the scheduler's process ({why}): with "
        "backend host all workers of an engine run on the scheduler's node, in its PID namespace; "
        "use backend mooncake for others"
    )


class HostStore:
    """The workers' half: reads and writes objects in the memory that they are told of."""

    def __init__(self, digest: str) -> None:
        self._digest = digest.encode()
        self._memory: HostMemory | None = None
        self._address: MemoryAddress | None = None

    def attach(self, address: MemoryAddress | None) -> None:
        """Open the memory, if it is not open yet."""
        if address is not None and address != self._address:
            self._memory, self._address = HostMemory.open(address), address

    def write(
        self,
        keys: Sequence[bytes],
        places: Sequence[Place],
        objects: Sequence[Bytes],
        layout: bytes,
    ) -> list[bool]:
        """Store objects, each with room for its header in front; return which of them are."""
        assert self._memory is not None, "it was attached"
        for key, place, data in zip(keys, places, objects, strict=True):
            seal(data, layout, self._short(key))
            self._memory.write(place, data)
        return [True] * len(keys)

    def read(
        self,
        keys: Sequence[bytes],
        places: Sequence[Place],
        targets: Sequence[Bytes],
        layout: bytes,
    ) -> list[str | None]:
        """Load objects, each with its header in front; return why each is unusable, if it is."""
        assert self._memory is not None, "it was attached"
        reasons = []
        for key, place, target in zip(keys, places, targets, strict=True):
            self._memory.read(place, target)
            reasons.append(why_unusable(target, layout, self._short(key)))
        return reasons

    def _short(self, key: bytes) -> bytes:
        return sha256(self._digest + key).digest()[:16]

    def register(self, buffer: Bytes) -> None:
        """Nothing has to know the buffers."""

    def close(self) -> None:
        """Let go of the memory."""
        self._memory = self._address = None
