# SPDX-License-Identifier: Apache-2.0
"""Copies of whole blocks that a worker makes before a step: the other half of a partial hit."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock


class KVCacheBlockCopy(NamedTuple):
    """Copy page ``src_block_id`` to page ``dst_block_id`` in every raw KV cache tensor."""

    src_block_id: int
    dst_block_id: int


class BlockCopies:
    """Copies from the moment they are decided until their step has been dispatched.

    Every source is referenced by its caller when it is queued, and released here: once the step
    that copies is certain to have been dispatched, or when the request that wanted it goes.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._queued: defaultdict[str, list[tuple[KVCacheBlock, KVCacheBlock]]] = defaultdict(list)
        self._dispatched: defaultdict[str, list[KVCacheBlock]] = defaultdict(list)

    def __len__(self) -> int:
        """Sources that are still referenced."""
        return len(self.sources())

    def queue(self, request_id: str, source: KVCacheBlock, private: KVCacheBlock) -> None:
        """Ask for a copy in the step being scheduled; ``source`` carries a reference for it."""
        self._queued[request_id].append((source, private))

    def take(self) -> list[KVCacheBlockCopy] | None:
        """Hand the queued copies to the step that has just been scheduled; ``None`` if none."""
        if not self._queued:
            return None
        copies: list[KVCacheBlockCopy] = []
        for request_id, pairs in self._queued.items():
            for source, private in pairs:
                copies.append(KVCacheBlockCopy(source.block_id, private.block_id))
                self._dispatched[request_id].append(source)
        self._queued.clear()
        return copies

    def release_dispatched(self) -> None:
        """Release the sources of the steps before: the next one is being scheduled."""
        if self._dispatched:
            for sources in self._dispatched.values():
                self._pool.free_blocks(sources)
            self._dispatched.clear()

    def forget(self, request_id: str) -> None:
        """A request ends or is preempted: drop copies not handed out yet, release its sources."""
        queued = [source for source, _ in self._queued.pop(request_id, ())]
        sources = queued + self._dispatched.pop(request_id, [])
        if sources:
            self._pool.free_blocks(sources)

    def sources(self) -> list[KVCacheBlock]:
        """Return every block referenced for a copy, once per reference. For checks."""
        queued = [source for pairs in self._queued.values() for source, _ in pairs]
        return queued + [block for blocks in self._dispatched.values() for block in blocks]
