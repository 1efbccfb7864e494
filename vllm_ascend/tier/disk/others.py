# SPDX-License-Identifier: Apache-2.0
"""What other engines do to the files that they share with this one: told by looking now and then.

A folder that has not changed since is not read: of a million files a look reads as many folders as
were written to.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from vllm_ascend.tier.disk.files import DiskFiles

_MTIME_STEP_NS = 2 * 10**9  # so coarse are the clocks of some file systems


class Change(NamedTuple):
    """What has changed between two looks.

    Attributes:
        gone: Key and generation of files that are no longer there.
        found: The same of files that are new.
        is_trusted: Nobody has emptied the folder since it was opened: what is found was written by
            engines that have been reset as often as this one.
    """

    gone: list[tuple[bytes, str]]
    found: list[tuple[bytes, str]]
    is_trusted: bool


class _Seen(NamedTuple):
    """A generation at the last look.

    Attributes:
        mtime_ns: 0: it may have changed unnoticed since.
        keys: Of its files.
    """

    mtime_ns: int
    keys: frozenset[bytes]


class OthersWatch:
    """Looks at the files of one layout. One thread at a time."""

    def __init__(self, files: DiskFiles) -> None:
        """Have seen nothing yet."""
        self._files = files
        self._seen: dict[str, _Seen] = {}

    def look(self) -> Change:
        """Return what has changed since the last look, those written or read last at the end.

        Raises:
            OSError: The disk fails.
        """
        files, seen = self._files, self._seen
        generations = files.generations()
        gone = [
            (key, name) for name in seen.keys() - generations.keys() for key in seen.pop(name).keys
        ]
        found: list[tuple[bytes, str]] = []
        nothing = _Seen(0, frozenset())
        for name in sorted(generations):
            last = seen.get(name, nothing)
            if generations[name] == last.mtime_ns:
                continue
            is_settled = time.time_ns() - generations[name] > _MTIME_STEP_NS
            in_order = files.keys_in(name)
            keys = frozenset(in_order)
            found += [(key, name) for key in in_order if key not in last.keys]
            gone += [(key, name) for key in last.keys - keys]
            seen[name] = _Seen(generations[name] if is_settled else 0, keys)
        return Change(gone, found, files.is_as_opened())
