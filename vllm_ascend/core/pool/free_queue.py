# SPDX-License-Identifier: Apache-2.0
"""The order in which free blocks are handed out: scratch, spare, cached, protected, pinned."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from vllm_ascend.core.pool.block_pool_methods import prepend_n


class Tier(IntEnum):
    """What is lost when a free block is handed out; a lower tier is always given up first."""

    SCRATCH = 0  # nothing
    SPARE = 1  # a tail that nothing asked to keep, first in first out
    CACHED = 2  # a prefix or a kept tail, least recently used first
    PROTECTED = 3  # the same of a prompt that came again, least recently used first
    PINNED = 4  # a window that was left in the middle of a prompt, oldest first


class TieredFreeQueue(FreeKVCacheBlockQueue):
    """vLLM's free queue in tiers. Every operation is O(1) per block.

    Attributes:
        num_free_blocks: Free blocks over all tiers; pinned ones count, so that nobody waits for
            memory that pins hold.
        num_handed_out: By tier, how many blocks of it were handed out so far. It outlives the
            queue: the one that follows it goes on counting.
    """

    def __init__(
        self, blocks: Sequence[KVCacheBlock], num_handed_out: list[int] | None = None
    ) -> None:
        """Put all blocks, in their order, into the scratch tier.

        Args:
            blocks: Blocks with consecutive ids, none of them in another queue.
            num_handed_out: The counters of the queue that this one follows.
        """
        self.num_handed_out = num_handed_out or [0] * len(Tier)
        self._tiers = [
            FreeKVCacheBlockQueue(list(blocks) if tier is Tier.SCRATCH else []) for tier in Tier
        ]
        self._first_id = blocks[0].block_id if blocks else 0
        self._tier_of = bytearray(len(blocks))
        self.num_free_blocks = len(blocks)
        # Who walks the queue from its head looks for hashed blocks (vLLM's CPU offloading).
        self.fake_free_list_head = self._tiers[Tier.CACHED].fake_free_list_head
        self.fake_free_list_tail = self._tiers[Tier.CACHED].fake_free_list_tail

    @property
    def num_expendable_blocks(self) -> int:
        """Free blocks that can be handed out without losing anything kept."""
        return self._tiers[Tier.SCRATCH].num_free_blocks + self._tiers[Tier.SPARE].num_free_blocks

    @property
    def num_free_by_tier(self) -> list[int]:
        """Free blocks of every tier, the one given up first at the front."""
        return [tier.num_free_blocks for tier in self._tiers]

    @property
    def tiers(self) -> Sequence[FreeKVCacheBlockQueue]:
        """The tiers, the one given up first at the front. For checks."""
        return tuple(self._tiers)

    def popleft(self) -> KVCacheBlock:
        """Take the block that is given up first.

        Raises:
            ValueError: No block is free.
        """
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the ``n`` blocks that are given up first; so many must be free."""
        assert self.num_free_blocks >= n
        self.num_free_blocks -= n
        taken: list[KVCacheBlock] = []
        for rank, tier in enumerate(self._tiers):
            wanted = min(n - len(taken), tier.num_free_blocks)
            if wanted:
                taken += tier.popleft_n(wanted)
                self.num_handed_out[rank] += wanted
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block from wherever it is."""
        self._tiers[self._tier_of[block.block_id - self._first_id]].remove(block)
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Add a block as the most recently used one."""
        self.append_n([block])

    def append_n(self, blocks: list[KVCacheBlock], tier: Tier = Tier.CACHED) -> None:
        """Add blocks behind all others of a tier."""
        self._note_tier(blocks, tier)
        self._tiers[tier].append_n(blocks)

    def demote_n(self, n: int, tier: Tier = Tier.PINNED) -> list[KVCacheBlock]:
        """Move the ``n`` oldest blocks of a tier, or all of fewer, behind the cached ones.

        Returns:
            The blocks that were moved, oldest first.
        """
        demoted = self._tiers[tier].popleft_n(min(n, self._tiers[tier].num_free_blocks))
        self.num_free_blocks -= len(demoted)
        self.append_n(demoted)
        return demoted

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        """Add blocks to be handed out next, ``blocks[0]`` first."""
        self._note_tier(blocks, Tier.SCRATCH)
        prepend_n(self._tiers[Tier.SCRATCH], blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return all free blocks in the order in which they would be handed out."""
        return [block for tier in self._tiers for block in tier.get_all_free_blocks()]

    def _note_tier(self, blocks: Sequence[KVCacheBlock], tier: Tier) -> None:
        for block in blocks:
            self._tier_of[block.block_id - self._first_id] = tier
        self.num_free_blocks += len(blocks)
