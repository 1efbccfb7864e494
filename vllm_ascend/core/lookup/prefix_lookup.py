# SPDX-License-Identifier: Apache-2.0
"""One request's look-up in the groups' indexes: prefixes from the left, tails at a boundary."""

from __future__ import annotations

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashList,
    BlockHashListWithBlockSize,
    BlockHashWithGroupId,
    KVCacheBlock,
)

from vllm_ascend.core.layout.block_names import BlockNames
from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.policy.boundaries import align_down
from vllm_ascend.core.pool.granule_index import GranuleIndex
from vllm_ascend.core.pool.successors import SuccessorHashes


class CacheView:
    """The indexes that look-ups read; all look-ups share them.

    Attributes:
        granules: Entries of blocks that a hit may end inside; ``None`` if none may.
        successors: What followed the blocks of draft layers.
    """

    def __init__(
        self,
        pool: BlockPool,
        plan: CachePlan,
        successors: SuccessorHashes,
    ) -> None:
        self.pool = pool
        self.hash_tokens, self.alignment = plan.hash_tokens, plan.alignment
        self.granules: GranuleIndex | None = getattr(pool, "granules", None)
        self.successors = successors
        self._is_stock = plan.is_stock

    def names(self, block_hashes: list[BlockHash], block_tokens: int) -> BlockNames | BlockHashList:
        """Return the names of a request's blocks of one size, by ordinal."""
        if block_tokens == self.hash_tokens:
            return block_hashes
        if self._is_stock:  # coarse blocks are named by all of their hashes
            return BlockHashListWithBlockSize(block_hashes, self.hash_tokens, block_tokens)
        return BlockNames(block_hashes, self.hash_tokens, block_tokens)


class PrefixLookup:
    """One request's look-up. It changes nothing, and is valid until the next allocation."""

    def __init__(self, view: CacheView, block_hashes: list[BlockHash]) -> None:
        self._view = view
        self._block_hashes = block_hashes
        self._cache = view.pool.cached_block_hash_to_block._cache

    def longest_prefix(self, group: Group, limit: int) -> tuple[list[KVCacheBlock], int]:
        """Return a prefix group's cached blocks up to the first gap, and the tokens matched.

        These are ``limit`` at most. The blocks are whole ones; the tokens may reach further, into a
        block that a hit can end inside.
        """
        names = self._view.names(self._block_hashes, group.block_tokens)
        count = min(limit // group.block_tokens, len(names))
        prefix: list[KVCacheBlock] = []
        if group.is_eagle:
            for ordinal in range(count):
                block = self._cached_block(group, names[ordinal], ordinal)
                if block is None:
                    break
                prefix.append(block)
        else:
            suffix, get = group.suffix, self._cache.get
            for name in names.first(count) if isinstance(names, BlockNames) else names[:count]:
                found = get(name + suffix)
                if found is None:
                    break
                if not isinstance(found, KVCacheBlock):
                    found = next(iter(found.values()))
                prefix.append(found)
        matched = len(prefix) * group.block_tokens
        if group.ends_inside:
            matched = self._match_inside(group, matched, limit)
        return prefix, matched

    def source(self, group: Group, boundary: int) -> tuple[KVCacheBlock | None, int]:
        """Return a block to copy for a hit that ends inside it, and ``boundary``.

        If none reaches it: ``None``, and the longest match in that block. Blocks that the step
        being scheduled has yet to write are not entered yet.
        """
        view = self._view
        assert view.granules is not None
        block = view.granules.find(group.id, self._block_hashes[boundary // view.hash_tokens - 1])
        if block is not None:
            return block, boundary
        start = align_down(boundary, group.block_tokens)
        return None, min(self._match_inside(group, start, boundary), boundary - 1)

    def tail(self, group: Group, boundary: int) -> tuple[list[KVCacheBlock], int]:
        """Return the group's tail of ``boundary``, and ``boundary``; or a smaller bound.

        The bound holds for any hit: every tail that reaches over the missing block misses it.
        """
        names = self._view.names(self._block_hashes, group.block_tokens)
        tail: list[KVCacheBlock] = []
        for ordinal in reversed(group.tail(boundary)):
            block = self._cached_block(group, names[ordinal], ordinal)
            if block is None:
                return [], ordinal * group.block_tokens
            tail.append(block)
        return tail[::-1], boundary

    def last_tail_end(self, group: Group, boundary: int) -> int:
        """Return the largest boundary up to this one at which the group's last block is cached."""
        # The one loop that may pass over thousands of boundaries: a dictionary look-up each.
        hashes, tokens = self._block_hashes, self._view.hash_tokens
        step, suffix, cache = self._view.alignment, group.suffix, self._cache
        while boundary > 0 and hashes[boundary // tokens - 1] + suffix not in cache:
            boundary -= step
        return max(boundary, 0)

    def _match_inside(self, group: Group, start: int, limit: int) -> int:
        """Return how far a block that starts at ``start`` is matched, ``limit`` at most."""
        view = self._view
        assert view.granules is not None
        tokens = view.hash_tokens
        end = min(limit, start + group.block_tokens - 1) // tokens
        first, end = start // tokens, min(end, len(self._block_hashes))
        if first >= end:
            return start
        matched = view.granules.longest_match(group.id, self._block_hashes, first, end)
        return align_down(matched * tokens, view.alignment) if matched > first else start

    def _cached_block(self, group: Group, name: BlockHash, ordinal: int) -> KVCacheBlock | None:
        found = self._cache.get(BlockHashWithGroupId(name + group.suffix))
        if found is None:
            return None
        # All blocks under the key, the one that vLLM would take first at the front.
        copies = (found,) if isinstance(found, KVCacheBlock) else tuple(found.values())
        if not group.is_eagle:
            return copies[0]
        end = (ordinal + 1) * group.block_tokens
        return self._view.successors.pick(copies, self._block_hashes, end)
