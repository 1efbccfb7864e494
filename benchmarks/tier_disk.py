# SPDX-License-Identifier: Apache-2.0
"""A disk below the tier: what its files cost, beside LMDB if that is installed.

python -m benchmarks.tier_disk /mnt/nvme
python -m benchmarks.tier_disk /mnt/nvme --names 1000000
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

from vllm_ascend.tier.disk.files import DiskFiles
from vllm_ascend.tier.disk.level import DiskLevel
from vllm_ascend.tier.disk.others import OthersWatch
from vllm_ascend.tier.disk.threads import DiskThreads
from vllm_ascend.tier.layout import ROWS, TAIL

# DeepSeek-V4-Flash: the rows of 128 tokens, and a tail; pages of the memory above.
_SIZES = {ROWS: 796_032, TAIL: 6_600_000}
_PAGE_BYTES = 796_032 // 3
_UNTIL_KILLED_S = 2.0


class Store(Protocol):
    """What is compared: objects by key in a folder."""

    def write(self, key: bytes, data: bytes) -> None: ...
    def read(self, key: bytes) -> bytes | bytearray: ...
    def remove(self, key: bytes) -> None: ...
    def keys(self) -> list[bytes]: ...


class Files:
    """The tier's."""

    def __init__(self, folder: str) -> None:
        self._files = DiskFiles(folder, "benchmark")
        self._where = dict(OthersWatch(self._files).look().found)
        self._memory = {kind: bytearray(size) for kind, size in _SIZES.items()}

    def write(self, key: bytes, data: bytes) -> None:
        """Write an object from pages."""
        view = memoryview(data)
        pages = [view[i : i + _PAGE_BYTES] for i in range(0, len(data), _PAGE_BYTES)]
        self._where[key] = self._files.write(key, pages)

    def read(self, key: bytes) -> bytes | bytearray:
        """Read an object into memory that is there, as the tier does."""
        data = self._memory[key[:1]]
        self._where[key] = self._files.read(key, self._where[key], [memoryview(data)])
        return data

    def remove(self, key: bytes) -> None:
        """Remove an object."""
        self._files.remove(key, self._where.pop(key))

    def keys(self) -> list[bytes]:
        """Return what is there."""
        return list(self._where)


class Lmdb:
    """LMDB, one transaction per object; without sync a loss of power may cost all of them."""

    def __init__(self, folder: str, *, sync: bool) -> None:
        lmdb: Any = importlib.import_module("lmdb")
        self._env = lmdb.open(folder, map_size=1 << 36, sync=sync, metasync=sync)

    def write(self, key: bytes, data: bytes) -> None:
        """Write an object."""
        with self._env.begin(write=True) as transaction:
            transaction.put(key, data)

    def read(self, key: bytes) -> bytes:
        """Read an object."""
        with self._env.begin() as transaction:
            return transaction.get(key)

    def remove(self, key: bytes) -> None:
        """Remove an object."""
        with self._env.begin(write=True) as transaction:
            transaction.delete(key)

    def keys(self) -> list[bytes]:
        """Return what is there."""
        with self._env.begin() as transaction:
            return list(transaction.cursor().iternext(keys=True, values=False))


def _key(kind: bytes, number: int) -> bytes:
    return kind + number.to_bytes(32, "big")


def _used_bytes(folder: str) -> int:
    return sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*") if path.is_file())


def _out_of_memory(folder: str) -> None:
    """Have everything come from the disk again."""
    for path in (path for path in Path(folder).rglob("*") if path.is_file()):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _measure(make: Callable[[str], Store], folder: str, kind: bytes, num_bytes: int) -> str:
    store, size = make(folder), _SIZES[kind]
    keys = [_key(kind, number) for number in range(num_bytes // size)]
    data = random.Random(0).randbytes(size)
    started = time.perf_counter()
    for key in keys:
        store.write(key, data)
    written = time.perf_counter() - started
    os.sync()
    synced = time.perf_counter() - started
    random.Random(1).shuffle(keys)
    _out_of_memory(folder)
    started = time.perf_counter()
    right = sum(store.read(key) == data for key in keys)
    read = time.perf_counter() - started
    assert right == len(keys)
    started = time.perf_counter()
    for key in keys:
        store.remove(key)
    removed = time.perf_counter() - started
    rates = (num_bytes / 1e9 / seconds for seconds in (written, synced, read))
    words = "write {:.2f} GB/s, with sync {:.2f}; read {:.2f}".format(*rates)
    left = _used_bytes(folder) / 1e6
    return f"{words}; remove {1e3 * removed / len(keys):.2f} ms each, {left:,.0f} MB left"


def _write_for_ever(make: Callable[[str], Store], folder: str) -> None:
    store, number = make(folder), 0
    data = random.Random(0).randbytes(_SIZES[TAIL])
    while True:
        store.write(_key(TAIL, number), data)
        number += 1


def _kill(make: Callable[[str], Store], folder: str) -> str:
    process = get_context("fork").Process(target=_write_for_ever, args=(make, folder))
    process.start()
    time.sleep(_UNTIL_KILLED_S)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    started = time.perf_counter()
    store = make(folder)
    keys = store.keys()
    seconds = time.perf_counter() - started
    data = random.Random(0).randbytes(_SIZES[TAIL])
    wrong = sum(store.read(key) != data for key in keys)
    return f"after kill -9: {len(keys)} objects found in {1e3 * seconds:.0f} ms, {wrong} wrong"


def _start(folder: str, num_names: int) -> str:
    files = DiskFiles(folder, "benchmark")
    for number in range(num_names):
        files.write(_key(TAIL if number % 10 == 0 else ROWS, number), [memoryview(b"")])
    files.close()
    wall, computing = time.perf_counter(), time.process_time()
    work = DiskThreads(DiskFiles(folder, "benchmark"), lambda place: [])
    level = DiskLevel(work, 1 << 60, _SIZES, 1)
    wall, computing = time.perf_counter() - wall, time.process_time() - computing
    return (
        f"{level.num_objects:,} objects are found in {wall:.1f} s, {computing:.1f} s of computing"
    )


def main() -> None:
    """Measure, and print a line per store and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--names", type=int, default=0, help="only measure a start over so many")
    options = parser.parse_args()
    stores: dict[str, Callable[[str], Store]] = {"files": Files}
    if importlib.util.find_spec("lmdb"):
        stores["LMDB"] = partial(Lmdb, sync=False)
        stores["LMDB with sync"] = partial(Lmdb, sync=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.names:
            print(_start(folder, options.names))
            sys.exit()
        for name, make in stores.items():
            for kind, size in _SIZES.items():
                (path := Path(folder) / f"{name}-{size}").mkdir()
                said = _measure(make, str(path), kind, int(options.gib * (1 << 30)))
                print(f"{name}, {size:,} bytes: {said}", flush=True)
                shutil.rmtree(path)
            (path := Path(folder) / f"{name}-killed").mkdir()
            print(f"{name}, {_kill(make, str(path))}", flush=True)


if __name__ == "__main__":
    main()
