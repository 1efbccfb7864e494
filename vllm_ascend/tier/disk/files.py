# SPDX-License-Identifier: Apache-2.0
"""The files of a disk: one per object, in a folder per layout.

::

    PATH/granule-tier/secret
    PATH/granule-tier/LAYOUT/lock
    PATH/granule-tier/LAYOUT/GENERATION/NAME

Generations are folders of some hundred files that were written or read last at about one time: in
the order of their names an engine that starts has what was used least recently in front. A file
gets its name when all of it is written, so a process that is killed leaves none that looks whole.
What a loss of power leaves, an object's checksum shows.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from vllm_ascend.tier.disk.names import SECRET_BYTES, FileNames

Buffers = Sequence[memoryview]
"""The pages of an object, in order."""

_ROOT = "granule-tier"
_SECRET, _LOCK, _PART = "secret", "lock", ".part"
_TRASH = "trash-"
_PER_GENERATION = 512
_MOST_BUFFERS = os.sysconf("SC_IOV_MAX")  # many parts of a large object are more
_UNFINISHED_S = 3600.0  # what is older is not being written any more


class DiskError(ValueError):
    """A path cannot be used; the message says why, and what to do."""


class DiskFiles:
    """The files of one layout under a path. Several engines of one layout may share it.

    Methods are called by any thread.

    Attributes:
        num_clears: How often :meth:`clear` was called.
    """

    def __init__(self, path: str, layout: str) -> None:
        """Make the folders, or open those that are there.

        Args:
            path: The folder that was set.
            layout: Name of what objects hold; engines with another one hold other objects.

        Raises:
            DiskError: The path is no folder of this user's that can be written, or another engine
                uses it with another layout.
        """
        root = Path(path) / _ROOT
        try:
            if not Path(path).is_dir():
                raise DiskError(
                    f"{path} is no folder"
                    if Path(path).exists()
                    else f"{path}: there is no such folder"
                )
            root.mkdir(mode=0o700, exist_ok=True)
            _check_owner(root)
            self._names = FileNames(_secret(root))
            self._layout = root / layout
            _remove_others(root, layout)
            self._lock = self._locked()
        except OSError as error:
            raise DiskError(f"{error.filename or path}: {error.strerror or error}") from error
        self._as_opened = True
        self.num_clears = 0
        self._guard = threading.Lock()
        self._engine = f"{os.getpid():x}-{secrets.token_hex(4)}"
        self._generation, self._num_in_it = "", _PER_GENERATION

    def _locked(self) -> int:
        """Make the folder if it is not there, and hold it, so that nobody else empties it.

        Raises:
            OSError: Somebody is emptying it, or the disk fails.
        """
        while True:
            self._layout.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self._layout / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                raise
            if self._is_held_by(descriptor):
                return descriptor
            os.close(descriptor)  # it was emptied in between

    def _is_held_by(self, descriptor: int) -> bool:
        """Whether a lock is that of the folder which is there now."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._layout / _LOCK))
        except FileNotFoundError:
            return False

    def generations(self) -> dict[str, int]:
        """Return each generation, and when a file last came to it or left it, in nanoseconds.

        Raises:
            OSError: The disk fails.
        """
        found = {}
        for entry in self._entries(self._layout):
            with contextlib.suppress(FileNotFoundError):  # another engine was faster
                if entry.is_dir():
                    found[entry.name] = entry.stat().st_mtime_ns
        return found

    def keys_in(self, generation: str) -> list[bytes]:
        """Return the objects of a generation, none if it is gone.

        What a killed process has left unfinished is removed.

        Raises:
            OSError: The disk fails.
        """
        keys, before = [], time.time() - _UNFINISHED_S
        for entry in self._entries(self._layout / generation):
            if (key := self._names.key(entry.name)) is not None:
                keys.append(key)
                continue
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < before:
                    _unlink(entry.path)
        return keys

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            return list(os.scandir(folder))
        except FileNotFoundError:
            return []

    def is_as_opened(self) -> bool:
        """Whether nobody has emptied the folder since, this engine neither."""
        with self._guard:
            self._as_opened = self._as_opened and self._is_held_by(self._lock)
            return self._as_opened

    def write(self, key: bytes, buffers: Buffers, num_clears: int | None = None) -> str:
        """Write an object; return its generation.

        Args:
            num_clears: Of :attr:`num_clears` when it was wanted: what was wanted before a clearing
                must not come behind it.

        Raises:
            OSError: The disk is full or fails, or was cleared since.
        """
        since = self.num_clears if num_clears is None else num_clears
        generation = self._next_generation(since)
        try:
            self._write(key, generation, buffers)
        except FileNotFoundError:  # another engine has removed the folder, which was empty
            generation = self._next_generation(since)
            self._write(key, generation, buffers)
        return generation

    def _write(self, key: bytes, generation: str, buffers: Buffers) -> None:
        name = self._layout / generation / self._names.name(key)
        part = name.with_name(name.name + _PART)
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                for some in _in_calls(buffers):
                    if os.writev(descriptor, some) != sum(map(len, some)):
                        raise OSError("the disk took only a part of an object")
            finally:
                os.close(descriptor)
            os.rename(part, name)
        except OSError:
            _unlink(part)
            raise

    def read(self, key: bytes, generation: str, buffers: Buffers) -> str:
        """Read an object, and move it to those that were used last; return its generation.

        Raises:
            OSError: It is gone or too short, or the disk fails.
        """
        name = self._names.name(key)
        path = self._layout / generation / name
        descriptor = os.open(path, os.O_RDONLY)
        try:
            for some in _in_calls(buffers):
                if os.readv(descriptor, some) != sum(map(len, some)):
                    raise OSError("a file is too short")
        finally:
            os.close(descriptor)
        moved_to = self._next_generation()
        try:
            os.rename(path, self._layout / moved_to / name)
        except OSError:  # another engine was faster, or nothing can be written any more
            return generation
        return moved_to

    def remove(self, key: bytes, generation: str) -> None:
        """Remove an object, if it is there, and its folder if it is the last one."""
        _unlink(self._layout / generation / self._names.name(key))
        if generation != self._generation:
            _remove_empty(self._layout / generation)

    def clear(self) -> Path:
        """Take everything out of the way at once; return what is to be removed.

        From then on nobody finds it, also if this process ends before it is removed.

        Raises:
            OSError: The disk fails, so what it holds would be found again.
        """
        with self._guard:
            trash = self._layout.with_name(f"{_TRASH}{secrets.token_hex(8)}")
            os.rename(self._layout, trash)
            os.close(self._lock)
            self._lock = self._locked()
            self._as_opened = False
            self.num_clears += 1
            self._num_in_it = _PER_GENERATION
        return trash

    def _next_generation(self, num_clears: int | None = None) -> str:
        """Return the folder for one more file; a new one if the last is full or gone.

        It is gone if another engine was reset. What is there now is to be held as well.
        """
        with self._guard:
            if num_clears not in (None, self.num_clears):
                raise FileNotFoundError("the disk was cleared")
            if self._num_in_it >= _PER_GENERATION or not (self._layout / self._generation).is_dir():
                if not self._is_held_by(self._lock):
                    held = self._locked()
                    os.close(self._lock)
                    self._lock, self._as_opened = held, False
                self._generation = f"{time.time_ns():016x}-{self._engine}"
                (self._layout / self._generation).mkdir(mode=0o700, parents=True, exist_ok=True)
                self._num_in_it = 0
            self._num_in_it += 1
            return self._generation

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self._lock)


def remove_trash(path: Path) -> None:
    """Remove what :meth:`DiskFiles.clear` has put aside."""
    shutil.rmtree(path, ignore_errors=True)


def _check_owner(root: Path) -> None:
    found = root.stat()
    if found.st_uid != os.getuid():
        raise DiskError(f"{root} is of another user: give each user a folder")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise DiskError(f"{root} can be read by others: chmod 700 {root}")


def _secret(root: Path) -> bytes:
    """Return the folder's secret; who comes first makes it."""
    path = root / _SECRET
    made = root / f"{_SECRET}.{secrets.token_hex(8)}"
    if not path.exists():
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, secrets.token_bytes(SECRET_BYTES))
        finally:
            os.close(descriptor)
        try:
            os.link(made, path)  # fails if somebody else was faster
        except FileExistsError:
            pass
        finally:
            os.unlink(made)
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise DiskError(f"{path} is no secret of a tier: remove {root}")
    return secret


def _remove_others(root: Path, layout: str) -> None:
    """Remove objects of other layouts, which nobody can load, and what was to be removed before.

    Raises:
        DiskError: An engine uses them.
    """
    for entry in list(os.scandir(root)):
        path = Path(entry.path)
        if not entry.is_dir() or entry.name == layout:
            continue
        if entry.name.startswith(_TRASH):
            remove_trash(path)
        elif (path / _LOCK).exists():
            descriptor = os.open(path / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_trash(path)
            except BlockingIOError:
                raise DiskError(
                    f"{root} is in use by an engine with another model, layout or setting: give "
                    "each of them a folder"
                ) from None
            finally:
                os.close(descriptor)


def _in_calls(buffers: Buffers) -> Iterator[Buffers]:
    """Divide buffers into as many as a call takes."""
    for start in range(0, len(buffers), _MOST_BUFFERS):
        yield buffers[start : start + _MOST_BUFFERS]


def _unlink(path: str | Path) -> None:
    with contextlib.suppress(OSError):  # another engine was faster, or it cannot be removed
        os.unlink(path)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it is not empty
        folder.rmdir()
