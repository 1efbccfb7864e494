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

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock

from vllm_ascend.core.policy.units import BlockId, GroupId

_Holders: TypeAlias = KVCacheBlock | bytes
"""A block, or the ids of several as an array's bytes, the first that was entered in front.

A prompt that goes on inside a block shares a hundred granules with the block it was copied from. A
container for each of them would wake Python's garbage collector.
"""
_ID = "i"


class GranuleIndex:
    """(group, granule hash) -> blocks of that group whose rows cover the granule.

    Attributes:
        known: Block id -> the block's granules, one's name behind the other: a list for each block
            would wake Python's garbage collector. To be read only.
        group_of: Block id -> the block's group, of the same blocks. To be read only.
        kept_until: Block id -> the boundary of the deepest tail that the block's writer has kept,
            in tokens. Of writers that have ended.
    """

    def __init__(self) -> None:
        self._holders: defaultdict[GroupId, dict[BlockHash, _Holders]] = defaultdict(dict)
        self._by_id: dict[int, KVCacheBlock] = {}
        self.known: dict[BlockId, bytes] = {}
        self.group_of: dict[BlockId, GroupId] = {}
        self.kept_until: dict[BlockId, int] = {}
        self._name_bytes = 1  # all names are equally long

    def __contains__(self, block: KVCacheBlock) -> bool:
        """Whether any granule of the block is entered."""
        return block.block_id in self.known

    def __len__(self) -> int:
        """Blocks with entries."""
        return len(self.known)

    def enter(self, group_id: GroupId, block: KVCacheBlock, granules: Sequence[BlockHash]) -> None:
        """Add the next granules of a block, one at least, in order; its first one comes first."""
        holders = self._holders[group_id]
        names, self._name_bytes = b"".join(granules), len(granules[0])
        if block.block_id in self.known:
            self.known[block.block_id] += names
        else:
            self.known[block.block_id] = names
            self.group_of[block.block_id] = group_id
            self._by_id[block.block_id] = block
        if holders.keys().isdisjoint(granules):
            holders.update(dict.fromkeys(granules, block))
            return
        own, last, together = _ids(block), None, b""
        for granule in granules:
            others = holders.get(granule)
            if others is None:
                holders[granule] = block
                continue
            if others is not last:  # mostly the same as of the granule before
                last, together = others, _ids(others) + own
            holders[granule] = together

    def evict(self, block: KVCacheBlock) -> None:
        """Drop all entries of a block; nothing happens if there are none."""
        if block.block_id not in self.known:
            return
        granules = self.granules_of(block.block_id)
        del self.known[block.block_id]
        self.kept_until.pop(block.block_id, None)
        own = self._by_id.pop(block.block_id)
        holders = self._holders[self.group_of.pop(block.block_id)]
        last: _Holders | None = None
        for granule in granules:
            found = holders[granule]
            if found is own:
                del holders[granule]
                continue
            if found is not last:
                last, left = found, self._without(found, own)
            holders[granule] = left

    def _without(self, holders: _Holders, block: KVCacheBlock) -> _Holders:
        assert isinstance(holders, bytes), "other blocks hold the granule as well"
        left = array(_ID, holders)
        left.remove(block.block_id)
        return left.tobytes() if len(left) > 1 else self._by_id[left[0]]

    def granules_of(self, block_id: BlockId) -> list[BlockHash]:
        """Return a block's granules that are entered; empty if none is."""
        names, size = self.known.get(block_id, b""), self._name_bytes
        return [BlockHash(names[start : start + size]) for start in range(0, len(names), size)]

    def find(self, group_id: GroupId, granule: BlockHash) -> KVCacheBlock | None:
        """Return a block that holds the rows of a granule and of those before it in the block."""
        found = self._holders[group_id].get(granule)
        return self._by_id[array(_ID, found)[0]] if isinstance(found, bytes) else found

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
        found = self._holders[self.group_of[block.block_id]].get(granule)
        if not isinstance(found, bytes):
            return
        ids = array(_ID, found)
        holders = set(ids)
        for block_id in ids if len(ids) <= len(among) else among:
            if block_id in holders and block_id in among and block_id != block.block_id:
                yield self._by_id[block_id]

    def longest_match(
        self, group_id: GroupId, hashes: Sequence[BlockHash], start: int, end: int
    ) -> int:
        """Return the end of the longest entered run in ``[start, end)``; ``start`` if none is.

        ``hashes`` are a request's, one per granule; the range lies in one block, from its start on.
        """
        cache = self._holders[group_id]
        while start < end:
            middle = (start + end + 1) // 2
            if hashes[middle - 1] in cache:
                start = middle
            else:
                end = middle - 1
        return start

    def clear(self) -> None:
        """Forget everything."""
        self._holders.clear()
        self._by_id.clear()
        self.known.clear()
        self.group_of.clear()
        self.kept_until.clear()

    def num_entries(self) -> int:
        """Return how many (group, granule, block) there are. Walks everything, for checks."""
        every = (found for holders in self._holders.values() for found in holders.values())
        return sum(len(array(_ID, _ids(found))) for found in every)

    def blocks_of(self, group_id: GroupId, granule: BlockHash) -> set[int]:
        """Return the ids of all blocks entered under a granule. For checks."""
        found = self._holders[group_id].get(granule)
        return set() if found is None else set(array(_ID, _ids(found)))


def _ids(holders: _Holders) -> bytes:
    return holders if isinstance(holders, bytes) else array(_ID, (holders.block_id,)).tobytes()
