# SPDX-License-Identifier: Apache-2.0
"""The block pool behind our coordinator: tiers of free blocks, names per granule, granule entries.

A subclass, built by the coordinator itself: vLLM's own pools stay what they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vllm.distributed.kv_events import KVCacheEvent
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, KVCacheBlock, get_group_id
from vllm.v1.request import Request

from vllm_ascend.core.events.kv_event_log import KVEventLog
from vllm_ascend.core.layout.block_names import BlockNames
from vllm_ascend.core.layout.groups import group_suffix
from vllm_ascend.core.policy.protection import num_overflowing
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.core.policy.units import GroupId
from vllm_ascend.core.pool.free_queue import TieredFreeQueue, shares_tier
from vllm_ascend.core.pool.given_up_names import GivenUpNames
from vllm_ascend.core.pool.granule_index import GranuleIndex

# As plain ints: comparing with members of an enumeration costs more than all else per block.
_MARGINAL, _ROLLING = int(Rank.MARGINAL), int(Rank.ROLLING)
_KEPT, _PROTECTED = int(Rank.KEPT), int(Rank.PROTECTED)


class AscendBlockPool(BlockPool):
    """vLLM's block pool with tiers of free blocks.

    Attributes:
        granules: The entries of blocks that a hit may end inside.
        given_up: Told of every name that stands for nothing any more; ``None`` if nobody asks.
        before_reset: Called before all is forgotten, to let go of what waits for steps in flight.
        event_log: What is told of the cache; ``None`` where nobody is told.
        draft_groups: Groups in which blocks of one name may differ: see ``SuccessorHashes``.
    """

    enable_kv_cache_events: bool

    def __init__(self, *args, tells_front_end: bool = False, **kwargs) -> None:
        """Build vLLM's pool, which takes all other arguments.

        Args:
            tells_front_end: The front end chooses data-parallel ranks by what they have cached.
        """
        super().__init__(*args, **kwargs)
        # All but the null block, which vLLM's constructor has taken out.
        self.free_block_queue: TieredFreeQueue = TieredFreeQueue(self.blocks[1:])
        self.granules = GranuleIndex()
        self.given_up: GivenUpNames | None = None
        self.before_reset: Callable[[], None] | None = None
        self.draft_groups: Collection[GroupId] = ()
        self._left: Collection[int] = ()
        self._ranks = bytearray([Rank.KEPT]) * self.num_gpu_blocks
        # Of blocks of tails: how many requests went on there, up to two.
        self._uses = bytearray(self.num_gpu_blocks)
        self.event_log = self._make_event_log(tells_front_end)
        # vLLM's own events count copies; the log tells of the first and the last.
        self.enable_kv_cache_events = False

    def _make_event_log(self, tells_front_end: bool) -> KVEventLog | None:
        publishes = self.enable_kv_cache_events
        if not (publishes or tells_front_end):
            return None
        return KVEventLog(
            self.hash_block_size, publishes=publishes, tells_front_end=tells_front_end
        )

    def cache_full_blocks(
        self,
        request: Request,
        blocks: list[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: GroupId,
        block_mask: Sequence[bool] | None = None,
    ) -> None:
        """Enter full blocks under their names. Null and already entered ones are passed over.

        Args:
            blocks: All blocks of the request in the group; ``[num_cached_blocks, num_full_blocks)``
                are entered, which the request's hashes must cover.
            block_mask: One flag per ordinal; ``None`` allows all.
        """
        ordinals: Iterable[int] = range(num_cached_blocks, num_full_blocks)
        if block_mask is not None:
            ordinals = itertools.compress(ordinals, block_mask)
        entered = self.enter(request, blocks, ordinals, block_size, kv_cache_group_id, Rank.ROLLING)
        self.announce(request, blocks, entered, block_size, kv_cache_group_id)

    def enter(
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        ordinals: Iterable[int],
        block_tokens: int,
        group_id: GroupId,
        rank: Rank = Rank.KEPT,
    ) -> list[int]:
        """Enter some blocks, by ascending ordinals, under their names; see ``cache_full_blocks``.

        A block that is cached already keeps the better of two ranks. Idle blocks of the same names
        are given up: their rows are there twice now. Returns the ordinals of the others.
        """
        names = BlockNames(request.block_hashes, self.hash_block_size, block_tokens)
        name_of, suffix = names.__getitem__, group_suffix(group_id)
        cached, ranks = self.cached_block_hash_to_block._cache, self._ranks
        may_differ = group_id in self.draft_groups
        entered: list[int] = []
        for ordinal in ordinals:
            block = blocks[ordinal]
            if block._block_hash is None:
                if block.is_null:
                    continue
                key = BlockHashWithGroupId(name_of(ordinal) + suffix)
                block._block_hash = key
                is_duplicate = key in cached
                self.cached_block_hash_to_block.insert(key, block)
                ranks[block.block_id] = rank
                if is_duplicate and not may_differ:
                    self._give_up_duplicates(block)
                entered.append(ordinal)
            elif ranks[block.block_id] < rank:
                self.set_rank(block, rank)
        return entered

    def announce(
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        ordinals: Sequence[int],
        block_tokens: int,
        group_id: GroupId,
    ) -> None:
        """Tell those who follow the cache's events of blocks that are entered, or will be.

        Null blocks are passed over, and those that are told already.
        """
        if self.event_log is None:
            return
        is_told = self.event_log.is_told
        ordinals = [i for i in ordinals if not (blocks[i].is_null or is_told(blocks[i].block_id))]
        if ordinals:
            names = BlockNames(request.block_hashes, self.hash_block_size, block_tokens)
            self.event_log.blocks_stored(group_id, request, names, blocks, ordinals, block_tokens)

    def key_of(
        self, request: Request, ordinal: int, block_tokens: int, group_id: GroupId
    ) -> BlockHashWithGroupId:
        """Return the key of a request's block."""
        names = BlockNames(request.block_hashes, self.hash_block_size, block_tokens)
        return BlockHashWithGroupId(names[ordinal] + group_suffix(group_id))

    def cache_partial_block(self, *args, **kwargs) -> None:
        """Enter nothing: what a hit may end inside is entered by granules.

        In later releases vLLM's managers call this with a prompt's last block, before it is
        written. Source: vLLM 0.30.0 ``FullAttentionManager.cache_blocks``.
        """

    def rank(self, block: KVCacheBlock) -> Rank:
        """Return how long a cached block stays."""
        return Rank(self._ranks[block.block_id])

    def set_rank(self, block: KVCacheBlock, rank: Rank) -> None:
        """Change a cached block's rank; if it is free, it changes its tier with it."""
        old = self._ranks[block.block_id]
        self._ranks[block.block_id] = rank
        if block.ref_cnt == 0 and not shares_tier(old, rank):
            self.free_block_queue.remove(block)
            self.free_block_queue.append_n([block], rank)

    def note_use(self, block: KVCacheBlock, *, is_shared: bool = False) -> None:
        """A request goes on behind a cached tail's block; ``is_shared``: where others do too."""
        uses = self._uses[block.block_id]
        self._uses[block.block_id] = 2 if uses or is_shared else 1

    def was_used(self, block: KVCacheBlock) -> bool:
        """Whether a request went on there since the block was cached."""
        return self._uses[block.block_id] > 0

    def is_shared(self, block: KVCacheBlock) -> bool:
        """Whether several requests went on there since the block was cached."""
        return self._uses[block.block_id] > 1

    def protect(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Let cached blocks outlive others, once they are free. All of them must be in use."""
        ranks, with_granules = self._ranks, self.granules.known
        for block in blocks:
            block_id = block.block_id
            is_cached = block._block_hash is not None or block_id in with_granules
            if is_cached and ranks[block_id] < Rank.PROTECTED:
                ranks[block_id] = Rank.PROTECTED

    def keep(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Keep cached blocks that nothing kept so far. All of them must be in use."""
        ranks = self._ranks
        for block in blocks:
            if ranks[block.block_id] < _KEPT:
                ranks[block.block_id] = _KEPT

    def let_go(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Let cached blocks go with marginal tails, once they are free. All of them must be in use.

        A block that a hit has used keeps its rank.
        """
        ranks, with_granules = self._ranks, self.granules.known
        for block in blocks:
            # Blocks that are cached by granules alone were copied by hits at most.
            is_named = block._block_hash is not None
            if ranks[block.block_id] == _ROLLING if is_named else block.block_id in with_granules:
                ranks[block.block_id] = _MARGINAL

    def demote_n(self, n: int, rank: Rank = Rank.PINNED) -> int:
        """Let the ``n`` oldest free blocks of a rank be kept like others; return how many it were.

        Their content stays cached.

        Source: vllm-project/vllm#40676 ``BlockPool.demote_n``.
        """
        demoted = self.free_block_queue.demote_n(n, rank)
        for block in demoted:
            self._ranks[block.block_id] = Rank.KEPT
        return len(demoted)

    def give_up(self, block: KVCacheBlock) -> None:
        """Take a cached block out of the index; if it is free, it is scratch from now on."""
        self._maybe_evict_cached_block(block)
        if block.ref_cnt == 0:
            self.free_block_queue.remove(block)
            self.free_block_queue.prepend_n([block])

    def _give_up_duplicates(self, block: KVCacheBlock) -> None:
        """Give up the idle blocks with the same rows as one that is in use."""
        duplicates: Any = self.cached_block_hash_to_block._cache[block._block_hash]
        for other in list(duplicates.values()):
            if other.ref_cnt == 0:
                self._take_over(block, other)
                self.give_up(other)

    def _give_up_if_outlived(self, block: KVCacheBlock, same: dict[int, KVCacheBlock]) -> None:
        """Give a block up that nobody uses any more if another one with its rows is in use."""
        if get_group_id(block._block_hash) in self.draft_groups:
            return
        other = next((other for other in same.values() if other.ref_cnt), None)
        if other is not None:
            self._take_over(other, block)
            self._maybe_evict_cached_block(block)

    def _take_over(self, block: KVCacheBlock, duplicate: KVCacheBlock) -> None:
        """Let a block in use stay as long as its duplicate would have."""
        for of_blocks in (self._ranks, self._uses):
            of_blocks[block.block_id] = max(
                of_blocks[block.block_id], of_blocks[duplicate.block_id]
            )

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Hand out blocks, the one given up first at the head; see vLLM's base class.

        Pins are released once nothing else is left: that is why they count as free.
        """
        queue = self.free_block_queue
        if num_pinned := queue.tier(Rank.PINNED).num_free_blocks:
            missing = num_blocks - (queue.num_free_blocks - num_pinned)
            if 0 < missing <= num_pinned:
                queue.note_lost(Rank.PINNED, self.demote_n(missing))
        return super().get_new_blocks(num_blocks)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock], prepend: bool = False) -> None:
        """Drop one reference of every block; those without any left join the tier of their rank.

        Within it the first is reused first. A block whose rows another one in use has as well is
        given up. ``prepend``: all are next, whatever they hold.
        """
        with_granules, ranks, queue = self.granules.known, self._ranks, self.free_block_queue
        cached: Mapping[Any, Any] = self.cached_block_hash_to_block._cache
        scratch: list[KVCacheBlock] = []
        freed: dict[int, list[KVCacheBlock]] = {}
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt or block.is_null:
                continue
            if type(same := cached.get(block._block_hash)) is dict:
                self._give_up_if_outlived(block, same)
            if prepend or (block._block_hash is None and block.block_id not in with_granules):
                scratch.append(block)
            elif (rank := ranks[block.block_id]) in freed:
                freed[rank].append(block)
            else:
                # What shares a tier stays in order.
                kind = freed.setdefault(_KEPT if rank == _ROLLING else rank, [])
                freed[rank] = kind
                kind.append(block)
        if scratch:
            queue.prepend_n(scratch)
        for rank in freed.keys() - {_ROLLING}:
            queue.append_n(freed[rank], Rank(rank))
        if _PROTECTED in freed:
            num_protected = queue.tier(Rank.PROTECTED).num_free_blocks
            self.demote_n(num_overflowing(num_protected, queue.num_free_blocks), Rank.PROTECTED)

    def refresh(self, block: KVCacheBlock) -> None:
        """Take a free cached block out of the queue, to be freed again as used just now."""
        self.free_block_queue.remove(block)
        block.ref_cnt += 1

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        """Drop everything that is known of a block's content; see vLLM's base class."""
        if block._block_hash is None and block.block_id not in self.granules.known:
            return super()._maybe_evict_cached_block(block) if self.metrics_collector else False
        self._ranks[block.block_id] = Rank.KEPT
        self._uses[block.block_id] = 0
        self.granules.evict(block)
        if self.event_log is not None:
            self.event_log.block_evicted(block.block_id)
        name = block._block_hash
        is_evicted = super()._maybe_evict_cached_block(block)
        is_lost = name is not None and name not in self.cached_block_hash_to_block._cache
        if self.given_up is not None and is_lost:
            self.given_up.add(name)
        return is_evicted

    @contextmanager
    def leaving(self, block_ids: Collection[int]) -> Iterator[None]:
        """Let resets inside leave some blocks to who uses them; nobody knows their content then."""
        self._left = block_ids
        try:
            yield
        finally:
            self._left = ()

    def reset_prefix_cache(self) -> bool:
        """Forget everything, if nothing is in use but what is left; see vLLM's base class."""
        if self.before_reset is not None:
            self.before_reset()
        self.num_gpu_blocks -= len(self._left)  # it counts those in use
        try:
            if not super().reset_prefix_cache():
                return False
        finally:
            self.num_gpu_blocks += len(self._left)
        self.granules.clear()
        if self.given_up is not None:
            self.given_up.clear()
        self._ranks = bytearray([Rank.KEPT]) * self.num_gpu_blocks
        self._uses = bytearray(self.num_gpu_blocks)
        handed_out = self.free_block_queue.num_handed_out
        self.free_block_queue = TieredFreeQueue(self.blocks[1:], handed_out)
        for block_id in self._left:
            self.free_block_queue.remove(self.blocks[block_id])
        if self.event_log is not None:
            self.event_log.cleared()
        return True

    def take_events(self) -> list[KVCacheEvent]:
        """Return the KV events since the last call."""
        return [] if self.event_log is None else self.event_log.take()
