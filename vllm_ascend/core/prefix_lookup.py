# SPDX-License-Identifier: Apache-2.0
"""One request's look-up in the groups' indexes: prefixes from the left, tails at a boundary."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashList,
    BlockHashListWithBlockSize,
    KVCacheBlock,
)
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager

from vllm_ascend.core.block_pool import cached_copies
from vllm_ascend.core.retention import tail_blocks
from vllm_ascend.core.successors import SuccessorHashes


@dataclass(frozen=True)
class Group:
    """One KV cache group as a look-up sees it. Sizes in tokens."""

    id: int
    manager: SingleTypeKVCacheManager
    block_tokens: int
    is_downward_closed: bool
    is_compressor_state: bool
    is_eagle: bool

    def tail(self, boundary: int) -> range:
        """Ordinals of the blocks that must be cached to resume at ``boundary``."""
        skipped = self.manager.get_num_skipped_tokens(boundary)
        return tail_blocks(boundary, skipped, self.block_tokens)


class PrefixLookup:
    """One request's look-up: its keys at every block size, and the cached blocks under them."""

    def __init__(
        self,
        block_hashes: list[BlockHash],
        hash_block_size: int,
        *,
        pool: BlockPool,
        successors: SuccessorHashes,
        unwritten_block_ids: Set[int],
    ) -> None:
        """Prepare a look-up; nothing is looked up yet.

        Args:
            block_hashes: The request's hashes, one per ``hash_block_size`` tokens.
            pool: Where the blocks are cached.
            successors: What follows the blocks of groups with draft layers.
            unwritten_block_ids: Blocks that are cached but must not be read in this step.
        """
        self._block_hashes = block_hashes
        self._hash_block_size = hash_block_size
        self._pool = pool
        self._successors = successors
        self._unwritten = unwritten_block_ids
        self._hashes_by_size: dict[int, BlockHashList] = {}

    def longest_prefix(self, group: Group, limit: int) -> list[KVCacheBlock]:
        """Return the cached blocks from the start to the first gap, ``limit`` tokens at most."""
        hashes = self._hashes(group.block_tokens)
        prefix: list[KVCacheBlock] = []
        for ordinal in range(min(limit // group.block_tokens, len(hashes))):
            block = self._cached_block(group, hashes, ordinal)
            if block is None:
                break
            prefix.append(block)
        return prefix

    def tail(self, group: Group, boundary: int) -> tuple[list[KVCacheBlock], int]:
        """Return the group's tail of ``boundary``, and ``boundary``; or a smaller bound.

        The bound holds for any hit: every tail that reaches over the missing block misses it.
        """
        hashes = self._hashes(group.block_tokens)
        tail: list[KVCacheBlock] = []
        for ordinal in group.tail(boundary):
            block = self._cached_block(group, hashes, ordinal)
            if block is None or block.block_id in self._unwritten:
                return [], ordinal * group.block_tokens
            tail.append(block)
        return tail, boundary

    def _hashes(self, block_tokens: int) -> BlockHashList:
        if block_tokens == self._hash_block_size:
            return self._block_hashes
        if block_tokens not in self._hashes_by_size:
            self._hashes_by_size[block_tokens] = BlockHashListWithBlockSize(
                self._block_hashes, self._hash_block_size, block_tokens
            )
        return self._hashes_by_size[block_tokens]

    def _cached_block(
        self, group: Group, hashes: BlockHashList, ordinal: int
    ) -> KVCacheBlock | None:
        if group.is_eagle:
            copies = cached_copies(self._pool, hashes[ordinal], group.id)
            end = (ordinal + 1) * group.block_tokens
            return self._successors.pick(copies, self._block_hashes, end)
        found = self._pool.get_cached_block(hashes[ordinal], [group.id])
        return found[0] if found else None
