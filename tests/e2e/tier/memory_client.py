# SPDX-License-Identifier: Apache-2.0
"""A client with Mooncake's methods over a dictionary, for traffic of many engines in one process.

The real store is tried in ``test_real_mooncake``.
"""

from __future__ import annotations

import ctypes
import random
import re
from collections import OrderedDict


class MemoryPool:
    """What all engines see.

    Attributes:
        capacity: Objects at most; the least recently used goes first.
        vanishes: Share of loads before which the object is given up.
        flips: Share of loads that change a byte.
    """

    def __init__(self, seed: int, capacity: int = 1 << 30) -> None:
        self.objects: OrderedDict[str, bytes] = OrderedDict()
        self.capacity = capacity
        self.vanishes = self.flips = 0.0
        self.is_dead = False
        self.num_calls = 0
        self.random = random.Random(seed)

    def put(self, name: str, data: bytes) -> None:
        self.objects.setdefault(name, data)
        while len(self.objects) > self.capacity:
            self.objects.popitem(last=False)

    def get(self, name: str) -> bytes | None:
        if self.random.random() < self.vanishes:
            self.objects.pop(name, None)
        data = self.objects.get(name)
        if data is None or self.random.random() >= self.flips:
            return data
        place = self.random.randrange(len(data))
        return (
            data[:place] + bytes([data[place] ^ 1 << self.random.randrange(8)]) + data[place + 1 :]
        )


class MemoryClient:
    """One engine's client."""

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool

    def register_buffer(self, address: int, size: int) -> int:
        return 0

    def batch_is_exist(self, names: list[str]) -> list[int]:
        self.pool.num_calls += 1
        if self.pool.is_dead:
            return [-900] * len(names)
        for name in names:
            if name in self.pool.objects:
                self.pool.objects.move_to_end(name)
        return [int(name in self.pool.objects) for name in names]

    def batch_put_from(self, names: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        if self.pool.is_dead:
            return [-900] * len(names)
        for name, address, size in zip(names, addresses, sizes, strict=True):
            self.pool.put(name, ctypes.string_at(address, size))
        return [0] * len(names)

    def batch_get_into(self, names: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        results = []
        for name, address, size in zip(names, addresses, sizes, strict=True):
            data = None if self.pool.is_dead else self.pool.get(name)
            if data is None or len(data) > size:
                results.append(-704)
                continue
            ctypes.memmove(address, data, len(data))
            results.append(len(data))
        return results

    def remove(self, name: str, force: bool) -> int:
        return 0 if self.pool.objects.pop(name, None) else -704

    def remove_by_regex(self, pattern: str, force: bool) -> int:
        if self.pool.is_dead:
            return -900
        for name in [name for name in self.pool.objects if re.match(pattern, name)]:
            del self.pool.objects[name]
        return 0

    def close(self) -> None:
        pass
