# SPDX-License-Identifier: Apache-2.0
"""What is on the disk, and what is given up first: what was used least recently."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping


class DiskIndex:
    """Objects by age, and in which generation of files each is.

    Attributes:
        num_bytes: What all of them may take.
        used_bytes: What they take.
    """

    def __init__(self, num_bytes: int, sizes: Mapping[bytes, int]) -> None:
        """Hold nothing yet.

        Args:
            sizes: Bytes of a file by kind, the first byte of a key.
        """
        self.num_bytes, self.used_bytes = num_bytes, 0
        self._sizes = sizes
        self._generations: OrderedDict[bytes, str] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        return key in self._generations

    def __len__(self) -> int:
        return len(self._generations)

    def generation(self, key: bytes) -> str | None:
        """Return where an object is; ``None``: nowhere."""
        return self._generations.get(key)

    def add(self, key: bytes, generation: str) -> None:
        """An object has been written or read: it goes last."""
        if key not in self._generations:
            self.used_bytes += self._sizes[key[:1]]
        self._generations[key] = generation
        self._generations.move_to_end(key)

    def remove(self, key: bytes) -> str | None:
        """Forget an object; return where it was."""
        generation = self._generations.pop(key, None)
        if generation is not None:
            self.used_bytes -= self._sizes[key[:1]]
        return generation

    def forget_first(self, key: bytes) -> None:
        """Give an object up before all others."""
        if key in self._generations:
            self._generations.move_to_end(key, last=False)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that objects were used, here or in memory, the last one of them last."""
        generations = self._generations
        for key in keys:
            if key in generations:
                generations.move_to_end(key)

    def victims(self) -> list[tuple[bytes, str]]:
        """Give up what is too much; return it, and where it was."""
        victims: list[tuple[bytes, str]] = []
        while self.used_bytes > self.num_bytes:
            key, generation = next(iter(self._generations.items()))
            self.remove(key)
            victims.append((key, generation))
        return victims

    def clear(self) -> list[bytes]:
        """Forget everything; return what it was."""
        keys = list(self._generations)
        self._generations.clear()
        self.used_bytes = 0
        return keys
