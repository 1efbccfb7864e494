# SPDX-License-Identifier: Apache-2.0
"""The memory of backend ``host``: pages that the scheduler's process makes and workers open.

It is a file without a name, which workers open through the scheduler's process: it is gone when the
last of them has ended, however they end.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from vllm_ascend.tier.objects import Bytes, seal, why_unusable

Place = tuple[int, ...]
"""The pages of an object, in order."""
MemoryAddress = tuple[int, int, int, int]
"""Process, file descriptor in it, number of pages, bytes per page."""


class HostMemory:
    """The memory itself, as its owner made it or as a worker has opened it."""

    def __init__(self, descriptor: int, num_pages: int, page_bytes: int) -> None:
        self._mmap = mmap.mmap(descriptor, num_pages * page_bytes)
        self._pages = np.frombuffer(self._mmap, np.uint8).reshape(num_pages, page_bytes)

    @classmethod
    def make(cls, num_pages: int, page_bytes: int) -> tuple[HostMemory, MemoryAddress]:
        """Make new memory; return it, and where others find it."""
        descriptor = os.memfd_create("granule-tier")
        os.ftruncate(descriptor, num_pages * page_bytes)
        address = (os.getpid(), descriptor, num_pages, page_bytes)
        return cls(descriptor, num_pages, page_bytes), address

    @classmethod
    def open(cls, address: MemoryAddress) -> HostMemory:
        """Open what another process has made.

        Raises:
            OSError: The process is gone, or may not be looked into.
        """
        process, descriptor, num_pages, page_bytes = address
        opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
        try:
            return cls(opened, num_pages, page_bytes)
        finally:
            os.close(opened)

    def write(self, place: Place, data: Bytes) -> None:
        """Write an object into its pages; the first one, with its header, last."""
        size = self._pages.shape[1]
        for i in range(len(place) - 1, -1, -1):
            part = data[i * size : (i + 1) * size]
            self._pages[place[i], : len(part)] = part

    def read(self, place: Place, target: Bytes) -> None:
        """Read an object from its pages."""
        size = self._pages.shape[1]
        for i, page in enumerate(place):
            part = target[i * size : (i + 1) * size]
            part[:] = self._pages[page, : len(part)]


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
