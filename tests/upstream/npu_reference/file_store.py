# SPDX-License-Identifier: Apache-2.0
"""AscendStore over a folder: every page is a file, with the tags of its rows.

Stands in for a store's client in AscendStore's table of backends; all else of AscendStore is
vllm-ascend's: its keys, threads and sockets.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Sequence
from pathlib import Path

from tests.upstream.npu_reference import transfers
from tests.upstream.store_client import StoreClient

BACKEND = "files"
_MISSING = -1


class FileStore(StoreClient):
    """Pages by key, of all engines that have the folder.

    Attributes:
        folder: Of this process' engine.
        loaded: Keys whose pages were loaded.
    """

    folder: Path
    loaded: list[str] = []

    def exists(self, keys: Sequence[str]) -> list[int]:
        """Return 1 for a key that has a page, else 0."""
        return [int(self.path(key).is_file()) for key in keys]

    def put(
        self, keys: Sequence[str], addresses: Sequence[list[int]], sizes: Sequence[list[int]]
    ) -> None:
        """Store pages; what is there already stays."""
        for key, places, lengths in zip(keys, addresses, sizes, strict=True):
            path = self.path(key)
            if path.is_file():
                continue
            part = path.with_suffix(".part")
            part.write_bytes(pickle.dumps((key, list(map(transfers.take, places, lengths)))))
            os.replace(part, path)

    def get(
        self, keys: Sequence[str], addresses: Sequence[list[int]], sizes: Sequence[list[int]]
    ) -> list[int]:
        """Load pages, whole ones; return 0 for each, or a negative number for one not there."""
        results = []
        for key, places, lengths in zip(keys, addresses, sizes, strict=True):
            if not self.path(key).is_file():
                results.append(_MISSING)
                continue
            _, page = pickle.loads(self.path(key).read_bytes())
            assert [len(part.content) for part in page] == lengths, f"{key} is loaded in part"
            for place, part in zip(places, page, strict=True):
                transfers.put(place, part)
            self.loaded.append(key)
            results.append(0)
        return results

    @classmethod
    def path(cls, key: str) -> Path:
        """Return where a key's page lies, if it is there."""
        return cls.folder / hashlib.sha256(key.encode()).hexdigest()


def keys_in(folder: Path) -> list[str]:
    """Return the keys of all pages of a folder."""
    return sorted(pickle.loads(path.read_bytes())[0] for path in folder.iterdir())


def stand_in(folder: Path) -> None:
    """Let the engine of this process store in a folder."""
    from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store import (  # type: ignore[import-not-found]
        pool_worker,
    )

    folder.mkdir(exist_ok=True)
    FileStore.folder = folder
    pool_worker.backend_map[BACKEND] = {"name": FileStore.__name__, "path": __name__}
