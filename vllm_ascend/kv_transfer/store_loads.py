# SPDX-License-Identifier: Apache-2.0
"""Loads from AscendStore's pool: which of them left a block without its page."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.logger import init_logger

_logger = init_logger("vllm.plugins.vllm_ascend_backport")


class PageAddresses(list[int]):
    """Where the parts of a block's page lie.

    Attributes:
        block_id: The block.
    """

    def __init__(self, addresses: Iterable[int], block_id: int) -> None:
        super().__init__(addresses)
        self.block_id = block_id


class CheckedStore:
    """A store's client that knows what it could not load; all else it leaves to the real one.

    Steps are computed in one thread and prompts loaded in another.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._lost: set[int] = set()
        self._taken: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @property
    def lost(self) -> frozenset[int]:
        """Ids of the blocks whose page could not be loaded, in this step or the one before.

        With drafts, a step is stored when they have been reported.
        """
        with self._lock:
            return frozenset(self._lost | self._taken)

    def take_lost(self) -> set[int]:
        """Return the ids that have not been returned yet; asked once in each step."""
        with self._lock:
            self._taken, self._lost = self._lost, set()
            return self._taken

    def get(
        self,
        keys: Sequence[str],
        addresses: Sequence[PageAddresses],
        sizes: Sequence[Sequence[int]],
    ) -> list[int]:
        """Load pages; return 0 for each, since those that are lost are reported by block."""
        missing = self._missing(keys, addresses, sizes)
        if missing:
            blocks = {addresses[index].block_id for index in missing}
            _logger.error("AscendStore: %d of %d pages were not loaded", len(missing), len(keys))
            with self._lock:
                self._lost |= blocks
        return [0] * len(keys)

    def _missing(self, keys: Sequence[str], *places: Any) -> Sequence[int]:
        """Load pages; return the indices of those that are not there now.

        Clients of earlier releases log what they could not load and return nothing. A page that is
        in the pool when they are done was there before: pages do not change under their keys.
        """
        try:
            results = self._client.get(keys, *places)
            if results is None:
                results = [there != 1 for there in self._client.exists(list(keys))]
        except Exception:  # of a store's client, of any kind
            _logger.exception("AscendStore: the pool cannot be read")
            return range(len(keys))
        return [index for index, result in enumerate(results) if result]
