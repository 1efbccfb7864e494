# SPDX-License-Identifier: Apache-2.0
"""The order in which free blocks are handed out: by rank, within a rank oldest first."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from vllm_ascend.core.policy.ranks import TIERS, Rank

# One queue of free blocks for each. Rolling tails wait with kept ones: most become such.
_QUEUES = tuple(rank for rank in Rank if rank is not Rank.ROLLING)
_QUEUE_OF = tuple(_QUEUES.index(Rank.KEPT if r is Rank.ROLLING else r) for r in Rank)
_TIER_OF_QUEUE = tuple(TIERS.index(r if r in TIERS else Rank.SPARE) for r in _QUEUES)


def shares_tier(one: int, other: int) -> bool:
    """Whether free blocks of two ranks wait in the same queue."""
    return _QUEUE_OF[one] == _QUEUE_OF[other]


class TieredFreeQueue(FreeKVCacheBlockQueue):
    """vLLM's free queue in several, given up one after another. Operations are O(1) per block.

    Attributes:
        num_free_blocks: Free blocks over all tiers; pinned ones count, so that nobody waits for
            memory that pins hold.
        num_handed_out: By tier, how many blocks of it were handed out so far. It outlives the
            queue: the one that follows it goes on counting.
        tiers: vLLM's queues, the one given up first at the front. To be read only.
    """

    def __init__(
        self,
        blocks: Sequence[KVCacheBlock],
        num_handed_out: list[int] | None = None,
    ) -> None:
        """Put all blocks, in their order, into the scratch tier.

        They have consecutive ids. ``num_handed_out``: of the queue that this one follows.
        """
        self.num_handed_out = num_handed_out or [0] * len(TIERS)
        scratch, others = FreeKVCacheBlockQueue(list(blocks)), _QUEUES[1:]
        self.tiers = [scratch, *(FreeKVCacheBlockQueue([]) for _ in others)]
        self._first_id = blocks[0].block_id if blocks else 0
        self._queue_of = bytearray(len(blocks))
        self.num_free_blocks = len(blocks)
        # vLLM's CPU offloading walks a queue from its head, in search of hashed blocks.
        self.fake_free_list_head = self.tier(Rank.KEPT).fake_free_list_head
        self.fake_free_list_tail = self.tier(Rank.KEPT).fake_free_list_tail

    def tier(self, rank: Rank) -> FreeKVCacheBlockQueue:
        """The queue in which free blocks of a rank wait."""
        return self.tiers[_QUEUE_OF[rank]]

    @property
    def num_expendable_blocks(self) -> int:
        """Free blocks that can be handed out without losing anything kept."""
        return sum(tier.num_free_blocks for tier in self.tiers[: _QUEUE_OF[Rank.KEPT]])

    @property
    def num_free_by_tier(self) -> list[int]:
        """Free blocks by tier as counted, the one given up first at the front."""
        counts = [0] * len(TIERS)
        for index, tier in zip(_TIER_OF_QUEUE, self.tiers, strict=True):
            counts[index] += tier.num_free_blocks
        return counts

    def popleft(self) -> KVCacheBlock:
        """Take the block that is given up first; ``ValueError`` if none is free."""
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the ``n`` blocks that are given up first; so many must be free."""
        assert self.num_free_blocks >= n
        self.num_free_blocks -= n
        taken: list[KVCacheBlock] = []
        for index, tier in zip(_TIER_OF_QUEUE, self.tiers, strict=True):
            wanted = min(n - len(taken), tier.num_free_blocks)
            if wanted:
                taken += tier.popleft_n(wanted)
                self.num_handed_out[index] += wanted
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block from wherever it is."""
        self.tiers[self._queue_of[block.block_id - self._first_id]].remove(block)
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Add a block as the most recently used one."""
        self.append_n([block])

    def append_n(self, blocks: list[KVCacheBlock], rank: Rank = Rank.KEPT) -> None:
        """Add blocks behind all others of their rank's tier."""
        self._note_tier(blocks, rank)
        self.tier(rank).append_n(blocks)

    def demote_n(self, n: int, rank: Rank = Rank.PINNED) -> list[KVCacheBlock]:
        """Move the ``n`` oldest blocks of a rank behind the kept ones; return them, oldest first.

        There may be fewer.
        """
        tier = self.tier(rank)
        demoted = tier.popleft_n(min(n, tier.num_free_blocks))
        self.num_free_blocks -= len(demoted)
        self.append_n(demoted)
        return demoted

    def note_lost(self, rank: Rank, num_demoted: int) -> None:
        """Count blocks that were demoted to be handed out at once as what they were."""
        self.num_handed_out[TIERS.index(rank)] += num_demoted
        self.num_handed_out[TIERS.index(Rank.KEPT)] -= num_demoted

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        """Add blocks to be handed out next, ``blocks[0]`` first."""
        self._note_tier(blocks, Rank.SCRATCH)
        self.tier(Rank.SCRATCH).prepend_n(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return all free blocks in the order in which they would be handed out."""
        return [block for tier in self.tiers for block in tier.get_all_free_blocks()]

    def _note_tier(self, blocks: Sequence[KVCacheBlock], rank: Rank) -> None:
        queue = _QUEUE_OF[rank]
        for block in blocks:
            self._queue_of[block.block_id - self._first_id] = queue
        self.num_free_blocks += len(blocks)
