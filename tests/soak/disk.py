# SPDX-License-Identifier: Apache-2.0
"""A disk below a tier's memory in the soak: real files, moved by steps instead of threads.

A replay must not depend on the machine, so nothing here asks a clock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterable
from unittest import mock

from tests.soak.slow_store import LateCalls
from vllm_ascend.tier.disk.files import Buffers, DiskFiles, remove_trash
from vllm_ascend.tier.disk.others import Change
from vllm_ascend.tier.disk.threads import Ended
from vllm_ascend.tier.host_memory import Place


class _KilledError(BaseException):
    """The process is gone."""


class LateDisk:
    """What a disk does beside the steps, some of them later, and not always.

    Args:
        late: share of calls that take steps.
        failures: share of writes and reads that fail; files are changed behind its back as well.
    """

    def __init__(
        self,
        files: DiskFiles,
        buffers: Callable[[Place], Buffers],
        seed: str,
        late: float,
        failures: float,
    ) -> None:
        self._files, self._buffers, self._failures = files, buffers, failures
        self._random = random.Random(f"{seed} disk")
        self._writes = LateCalls(f"{seed} disk writes", late)
        self._reads = LateCalls(f"{seed} disk reads", late)
        self._last: tuple[bytes, Place] | None = None

    def begin(self, tell: Callable[[Change], None]) -> Iterable[tuple[bytes, str]]:
        """All files; there is one engine at a time."""
        return self.objects()

    def objects(self) -> Iterable[tuple[bytes, str]]:
        """All files, in an order that is always the same."""
        names = sorted(self._files.generations())
        return [(key, name) for name in names for key in sorted(self._files.keys_in(name))]

    def write(
        self, key: bytes, place: Place, due: float, is_wanted: Callable[[], bool], ended: Ended
    ) -> None:
        """Write a file, now or in a later step."""
        self._last = key, place

        def write() -> None:
            try:
                self._may_fail(errno.ENOSPC)
                wanted = is_wanted()
                ended(self._files.write(key, self._buffers(place)) if wanted else None, "")
            except OSError as error:
                ended(None, str(error))

        self._writes.submit(write)

    def read(self, key: bytes, generation: str, place: Place, ended: Ended) -> None:
        """Read a file, now or in a later step."""

        def read() -> None:
            try:
                self._may_fail(errno.EIO)
                ended(self._files.read(key, generation, self._buffers(place)), "")
            except OSError as error:
                ended(None, str(error))

        self._reads.submit(read)

    def _may_fail(self, code: int) -> None:
        if self._random.random() < self._failures / 4:
            raise OSError(code, os.strerror(code))

    def remove(self, key: bytes, generation: str) -> None:
        """Remove a file, now or in a later step."""
        self._writes.submit(self._files.remove, key, generation)

    def clear(self) -> None:
        """Remove all files."""
        self._writes.submit(remove_trash, self._files.clear())

    def step(self) -> None:
        """A step has passed, in which somebody may have changed a file."""
        self._writes.step()
        self._reads.step()
        if self._random.random() < self._failures / 4:
            self._spoil()

    def _spoil(self) -> None:
        """Remove a file, cut it, change a byte, or give it the name of another one."""
        objects = self.objects()
        paths = [self._files._layout / name / self._files._names.name(key) for key, name in objects]
        paths = [path for path in paths if path.exists()]
        if not paths:
            return
        path, other = (self._random.choice(paths) for _ in range(2))
        data = bytearray(path.read_bytes())
        place = self._random.randrange(len(data))
        match self._random.choice(("gone", "short", "changed", "swapped")):
            case "gone":
                path.unlink()
            case "short":
                path.write_bytes(data[:place])
            case "changed":
                data[place] ^= 1 << self._random.randrange(8)
                path.write_bytes(data)
            case "swapped":
                path.write_bytes(other.read_bytes())

    def be_well(self) -> None:
        """From now on nothing is late, and nothing fails."""
        self._failures = 0.0
        self._writes.be_quick()
        self._reads.be_quick()

    def kill(self) -> None:
        """End where it is: between a write and the name that it is given."""
        for calls in (self._writes, self._reads):
            calls.shutdown(wait=False, cancel_futures=True)
        if self._last is not None:
            key, place = self._last
            killed = mock.patch.object(os, "rename", side_effect=_KilledError)
            with killed, contextlib.suppress(_KilledError):
                self._files.write(key, self._buffers(place))
        self._files.close()

    def close(self, seconds: float) -> None:
        """Let go of the disk."""
        self._writes.flush()
        self._files.close()
