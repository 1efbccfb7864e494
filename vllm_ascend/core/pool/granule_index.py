# SPDX-License-Identifier: Apache-2.0
"""Finds the compressed block that holds a granule's rows, for hits that end inside a block.

Compressed groups are downward closed, and a granule's hash names everything before it. So the
granules of one block that are entered always start with its first one, and the longest match inside
a block is found by bisection.

A dictionary entry per granule, rather than one per block that carries its granules: hundreds of
requests may share a prompt's first granules and then part inside the same block, and all of their
blocks would have to be tried (docs/speed.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm.v1.core.block_pool import BlockHashToBlockMap
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock

from vllm_ascend.core.policy.units import BlockId, GroupId


class GranuleIndex:
    """(group, granule hash) -> blocks of that group whose rows cover the granule.

    Attributes:
        known: Block id -> the block's group and its granules. To be read only.
        kept_until: Block id -> the boundary of the deepest tail that the block's writer has kept,
            in tokens. Of writers that have ended.
    """

    def __init__(self) -> None:
        self._blocks: defaultdict[GroupId, BlockHashToBlockMap] = defaultdict(BlockHashToBlockMap)
        self.known: dict[BlockId, tuple[GroupId, list[BlockHash]]] = {}
        self.kept_until: dict[BlockId, int] = {}

    def __contains__(self, block: KVCacheBlock) -> bool:
        """Whether any granule of the block is entered."""
        return block.block_id in self.known

    def __len__(self) -> int:
        """Blocks with entries."""
        return len(self.known)

    def enter(self, group_id: GroupId, block: KVCacheBlock, granules: Sequence[BlockHash]) -> None:
        """Add the next granules of a block, in order; the block's first one comes first."""
        entries = self._blocks[group_id]
        known = self.known.get(block.block_id)
        if known is None:
            self.known[block.block_id] = (group_id, list(granules))
        else:
            known[1].extend(granules)
        for granule in granules:
            entries.insert(granule, block)

    def evict(self, block: KVCacheBlock) -> None:
        """Drop all entries of a block; nothing happens if there are none."""
        known = self.known.pop(block.block_id, None)
        if known is not None:
            self.kept_until.pop(block.block_id, None)
            group_id, granules = known
            for granule in granules:
                self._blocks[group_id].pop(granule, block.block_id)

    def find(self, group_id: GroupId, granule: BlockHash) -> KVCacheBlock | None:
        """Return a block that holds the rows of a granule and of those before it in the block."""
        return self._blocks[group_id].get_one_block(granule)

    def others(
        self, block: KVCacheBlock, granule: BlockHash, among: Mapping[BlockId, Any]
    ) -> Iterator[KVCacheBlock]:
        """Yield the other blocks of a block's group that hold a granule and those before it.

        Args:
            block: One of them.
            granule: The granule.
            among: Only blocks whose ids are here. Hundreds of ended requests may have left blocks,
                or hundreds may run: the fewer of both are gone through.
        """
        group_id, _ = self.known[block.block_id]
        found = self._blocks[group_id]._cache.get(granule)
        if not isinstance(found, dict):
            return
        for block_id in found if len(found) <= len(among) else among:
            if block_id in found and block_id in among and block_id != block.block_id:
                yield found[block_id]

    def longest_match(
        self, group_id: GroupId, hashes: Sequence[BlockHash], start: int, end: int
    ) -> int:
        """Return the end of the longest entered run in ``[start, end)``; ``start`` if none is.

        ``hashes`` are a request's, one per granule; the range lies in one block, from its start on.
        """
        cache = self._blocks[group_id]._cache
        while start < end:
            middle = (start + end + 1) // 2
            if hashes[middle - 1] in cache:
                start = middle
            else:
                end = middle - 1
        return start

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self.known.clear()
        self.kept_until.clear()

    def num_entries(self) -> int:
        """Return how many (group, granule, block) there are. Walks everything, for checks."""
        return sum(
            len(found) if isinstance(found, dict) else 1
            for entries in self._blocks.values()
            for found in entries._cache.values()
        )

    def blocks_of(self, group_id: GroupId, granule: BlockHash) -> set[int]:
        """Return the ids of all blocks entered under a granule. For checks."""
        found = self._blocks[group_id]._cache.get(granule, {})
        return {found.block_id} if isinstance(found, KVCacheBlock) else set(found)
