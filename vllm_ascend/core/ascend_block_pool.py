# SPDX-License-Identifier: Apache-2.0
"""The block pool behind our coordinator: tiers of free blocks, names per granule, granule entries.

A subclass, built by the coordinator itself: vLLM's own pools stay what they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from enum import IntEnum

from vllm.distributed.kv_events import MEDIUM_GPU, BlockStored
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHashWithGroupId,
    KVCacheBlock,
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
)
from vllm.v1.request import Request

from vllm_ascend.core.block_names import BlockNames
from vllm_ascend.core.free_queue import Tier, TieredFreeQueue
from vllm_ascend.core.granule_index import GranuleIndex


class Rank(IntEnum):
    """Why a block of a tail is cached, and so how long."""

    KEPT = 0  # until it is the least recently used
    ROLLING = 1  # as long as its request would resume there, were it to end now
    SPARE = 2  # until its memory is needed


def group_suffix(group_id: int) -> bytes:
    """Return what turns a block's name into its key in the index, as vLLM does."""
    return group_id.to_bytes(4, "big", signed=False)


class AscendBlockPool(BlockPool):
    """vLLM's block pool with three tiers of free blocks.

    Attributes:
        granules: The entries of blocks that a hit may end inside.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        # All but the null block, which vLLM's constructor has taken out.
        self.free_block_queue: TieredFreeQueue = TieredFreeQueue(self.blocks[1:])
        self.granules = GranuleIndex()
        self._ranks = bytearray(self.num_gpu_blocks)

    # Entering

    def cache_full_blocks(
        self,
        request: Request,
        blocks: list[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: Sequence[bool] | None = None,
    ) -> None:
        """Enter full blocks under their names. Null and already entered ones are passed over.

        Args:
            blocks: All blocks of the request in the group.
            num_cached_blocks: First ordinal to enter.
            num_full_blocks: Behind the last ordinal; the request's hashes must cover it.
            block_size: Tokens per block.
            block_mask: One flag per ordinal; ``None`` allows all.
        """
        ordinals: Iterable[int] = range(num_cached_blocks, num_full_blocks)
        if block_mask is not None:
            ordinals = itertools.compress(ordinals, block_mask)
        self.enter(request, blocks, ordinals, block_size, kv_cache_group_id)

    def enter(
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        ordinals: Iterable[int],
        block_tokens: int,
        group_id: int,
        rank: Rank = Rank.KEPT,
    ) -> None:
        """Enter some blocks of a request under their names; see ``cache_full_blocks``.

        Args:
            ordinals: Which of ``blocks``, ascending.
            rank: Why; a block that is cached already keeps the better of two ranks.
        """
        names = BlockNames(request.block_hashes, self.hash_block_size, block_tokens)
        name_of, suffix = names.__getitem__, group_suffix(group_id)
        insert, ranks = self.cached_block_hash_to_block.insert, self._ranks
        entered: list[int] = []
        for ordinal in ordinals:
            block = blocks[ordinal]
            if block._block_hash is None:
                if block.is_null:
                    continue
                key = BlockHashWithGroupId(name_of(ordinal) + suffix)
                block._block_hash = key
                insert(key, block)
                ranks[block.block_id] = rank
                entered.append(ordinal)
            elif ranks[block.block_id] > rank:
                self.set_rank(block, rank)
        if self.enable_kv_cache_events:
            for start, end in _runs(entered):
                self._note_stored(request, names, start, end, block_tokens, group_id)

    def _note_stored(
        self,
        request: Request,
        names: BlockNames,
        start: int,
        end: int,
        block_tokens: int,
        group_id: int,
    ) -> None:
        """Tell routers of blocks ``[start, end)``: names, tokens and size describe each other."""
        extra_keys = []
        multimodal_index = 0
        for ordinal in range(start, end):
            keys, multimodal_index = generate_block_hash_extra_keys(
                request, ordinal * block_tokens, (ordinal + 1) * block_tokens, multimodal_index
            )
            extra_keys.append(keys)
        lora = request.lora_request
        self.kv_event_queue.append(
            BlockStored(
                block_hashes=[maybe_convert_block_hash(names[i]) for i in range(start, end)],
                parent_block_hash=maybe_convert_block_hash(names[start - 1]) if start else None,
                token_ids=request.all_token_ids[start * block_tokens : end * block_tokens],
                block_size=block_tokens,
                lora_id=lora.adapter_id if lora else None,
                medium=MEDIUM_GPU,
                lora_name=lora.name if lora else None,
                extra_keys=extra_keys,
                group_idx=group_id,
            )
        )

    # Ranks

    def rank(self, block: KVCacheBlock) -> Rank:
        """Return why a cached block is cached."""
        return Rank(self._ranks[block.block_id])

    def set_rank(self, block: KVCacheBlock, rank: Rank) -> None:
        """Change a cached block's rank; if it is free, it changes its tier with it."""
        old = self._ranks[block.block_id]
        self._ranks[block.block_id] = rank
        if block.ref_cnt == 0 and (old == Rank.SPARE) != (rank == Rank.SPARE):
            self.free_block_queue.remove(block)
            self.free_block_queue.append_n(
                [block], Tier.SPARE if rank == Rank.SPARE else Tier.CACHED
            )

    def give_up(self, block: KVCacheBlock) -> None:
        """Take a cached block out of the index; if it is free, it is scratch from now on."""
        self._maybe_evict_cached_block(block)
        if block.ref_cnt == 0:
            self.free_block_queue.remove(block)
            self.free_block_queue.prepend_n([block])

    # Freeing and evicting

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock], prepend: bool = False) -> None:
        """Drop one reference of every block; those without any left join the tier they belong to.

        Args:
            ordered_blocks: Blocks, within a tier the one to be reused first at the head.
            prepend: Hand them out next, whatever they hold.
        """
        with_granules, ranks = self.granules.known, self._ranks
        scratch: list[KVCacheBlock] = []
        spare: list[KVCacheBlock] = []
        cached: list[KVCacheBlock] = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt or block.is_null:
                continue
            if prepend or (block._block_hash is None and block.block_id not in with_granules):
                scratch.append(block)
            elif ranks[block.block_id] == Rank.SPARE:
                spare.append(block)
            else:
                cached.append(block)
        queue = self.free_block_queue
        if scratch:
            queue.prepend_n(scratch)
        if spare:
            queue.append_n(spare, Tier.SPARE)
        if cached:
            queue.append_n(cached)

    def refresh(self, block: KVCacheBlock) -> None:
        """Take a free cached block out of the queue, to be freed again as used just now."""
        self.free_block_queue.remove(block)
        block.ref_cnt += 1

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        """Drop everything that is known of a block's content; see vLLM's base class."""
        if block._block_hash is None and block.block_id not in self.granules.known:
            return super()._maybe_evict_cached_block(block) if self.metrics_collector else False
        self._ranks[block.block_id] = Rank.KEPT
        self.granules.evict(block)
        return super()._maybe_evict_cached_block(block)

    def reset_prefix_cache(self) -> bool:
        """Forget everything, if nothing is in use; see vLLM's base class."""
        if not super().reset_prefix_cache():
            return False
        self.granules.clear()
        self._ranks = bytearray(self.num_gpu_blocks)
        handed_out = self.free_block_queue.num_handed_out
        self.free_block_queue = TieredFreeQueue(self.blocks[1:], handed_out)
        return True


def _runs(ordinals: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Yield the maximal runs ``[start, end)`` of ascending ordinals."""
    start = end = -1
    for ordinal in ordinals:
        if ordinal != end:
            if end >= 0:
                yield start, end
            start = ordinal
        end = ordinal + 1
    if end >= 0:
        yield start, end
