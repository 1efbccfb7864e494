# SPDX-License-Identifier: Apache-2.0
"""Publishes KV events from which a router can replay every look-up.

This is the bookkeeping. ``kv_event_queue`` has the wire format for routers outside, whose readers
docs/kv-events.md is for; ``cache_news`` has the one for vLLM's own front end. A name is stored when
its first copy is cached, and removed when its last one is gone::

    group                               a unit, with a name of its own        told by
    hits end inside its blocks          a granule                             granules_stored
    whole prefixes, blocks of granules  each granule of a block               blocks_stored
    whole prefixes, granules of blocks  a granule that has all of its blocks  blocks_stored
    any other                           a block                               blocks_stored
    number of groups + a draft group    the granule behind a block            successor_known

Every group is described once, by an event without blocks, and again after everything is cleared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from vllm.distributed.kv_events import KVCacheEvent
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.events.announcement import AnnouncedGroup
from vllm_ascend.core.events.cache_news import CacheNewsQueue
from vllm_ascend.core.events.kv_event_queue import KVEventQueue
from vllm_ascend.core.layout.block_names import BlockNames
from vllm_ascend.dp_routing.news import CacheNews
from vllm_ascend.kv_events.layout import EngineRules

# By block id: an index in the events, and the names that are told because of the block.
_Holders = dict[int, tuple[int, list[BlockHash]]]


class KVEventLog:
    """Collects events until they are taken. One per pool, and only where somebody is told.

    Attributes:
        news: What the front end has not been told yet; ``None``: it is told nothing.
    """

    def __init__(
        self, hash_tokens: int, *, publishes: bool = True, tells_front_end: bool = False
    ) -> None:
        """Collect nothing yet.

        Args:
            hash_tokens: Tokens per hash of a request.
            publishes: KV events are enabled.
            tells_front_end: The front end chooses data-parallel ranks by what they have cached.
        """
        self._hash_tokens = hash_tokens
        self._queue = KVEventQueue() if publishes else None
        self.news = CacheNewsQueue(hash_tokens) if tells_front_end else None
        self._queues = [queue for queue in (self._queue, self.news) if queue is not None]
        self._groups: dict[int, AnnouncedGroup] = {}
        # (index in the events, name) -> blocks that hold it
        self._copies: Counter[tuple[int, BlockHash]] = Counter()
        # (group, granule) -> how many of its blocks are held, where it has several
        self._parts: Counter[tuple[int, BlockHash]] = Counter()
        self._digest_bytes = 0
        self._contents: _Holders = {}
        self._successors: _Holders = {}

    def take(self) -> list[KVCacheEvent]:
        """Return the KV events since the last call; none where they are not enabled."""
        return [] if self._queue is None else self._queue.take()

    def take_news(self) -> CacheNews | None:
        """Return what the front end has not been told yet; ``None`` if there is nothing."""
        return None if self.news is None else self.news.take()

    def all_news(self) -> CacheNews:
        """Return all that is cached, in one message. What is new must have been taken before."""
        assert self.news is not None
        return self.news.everything(self._copies)

    def describe(self, groups: Sequence[AnnouncedGroup], rules: EngineRules) -> None:
        """Say how to read the events. Called once, before anything is stored."""
        self._groups = {group.group_id: group for group in groups}
        for queue in self._queues:
            queue.describe(groups, rules)

    # Blocks and granules

    def blocks_stored(
        self,
        group_id: int,
        request: Request,
        names: BlockNames,
        blocks: Sequence[KVCacheBlock],
        ordinals: Sequence[int],
        block_tokens: int,
    ) -> None:
        """Note that these ascending ordinals of a request's ``blocks`` in a group were entered.

        ``names`` are by ordinal.
        """
        group = self._groups[group_id]
        if group.ends_inside:
            return  # told when its granules are collected
        if group.unit_tokens < block_tokens:
            per_block = block_tokens // group.unit_tokens
            granules = [i * per_block + place for i in ordinals for place in range(per_block)]
            self.granules_stored(group_id, request, blocks, granules, per_block)
            return
        units = [(i, blocks[i].block_id) for i in ordinals]
        first_copies = self._hold(self._contents, group_id, names, units)
        if group.unit_tokens == block_tokens:
            self._store(group_id, request, names, first_copies, block_tokens)
        else:
            complete = self._completed(group, request, first_copies)
            self._store(group_id, request, request.block_hashes, complete, self._hash_tokens)

    def granules_stored(
        self,
        group_id: int,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        granules: Iterable[int],
        per_block: int,
    ) -> None:
        """A request's ascending granules will be hittable once the step being scheduled has run.

        Granule ``i`` holds the tokens ``[i * hash_tokens, (i + 1) * hash_tokens)`` and lies in
        block ``i // per_block`` of all ``blocks`` of the request in the group.
        """
        units = [(i, blocks[i // per_block].block_id) for i in granules]
        names = request.block_hashes
        first_copies = self._hold(self._contents, group_id, names, units)
        self._store(group_id, request, names, first_copies, self._hash_tokens)

    def granules_withdrawn(self, block_id: int, names: Sequence[BlockHash]) -> None:
        """Granules of a block will not be written after all."""
        if block_id not in self._contents:
            return
        group_id, held = self._contents[block_id]
        withdrawn = set(names)
        held[:] = [name for name in held if name not in withdrawn]
        if not held:
            del self._contents[block_id]  # nobody will evict it
        self._drop_copies(group_id, names)

    def block_evicted(self, block_id: int) -> None:
        """A block's content was forgotten, and with it what was known of its successor."""
        self._release(self._contents, block_id)
        self._release(self._successors, block_id)

    def is_told(self, block_id: int) -> bool:
        """Whether anything is told of a block's content."""
        return block_id in self._contents

    def cleared(self) -> None:
        """Everything was forgotten."""
        for known in (self._copies, self._parts, self._contents, self._successors):
            known.clear()
        for queue in self._queues:
            queue.clear()

    # Successors

    def successor_known(
        self, group_id: int, request: Request, block_id: int, end_tokens: int
    ) -> None:
        """A block of a draft group is cached, and was followed by the request's next granule.

        The block ends at ``end_tokens``, a multiple of ``hash_tokens``; what is told is the granule
        ``[end_tokens, end_tokens + hash_tokens)``.
        """
        granule = end_tokens // self._hash_tokens
        index, names = group_id + len(self._groups), request.block_hashes
        if self._successors.get(block_id) == (index, [names[granule]]):
            return
        self.successor_unknown(block_id)
        first_copies = self._hold(self._successors, index, names, [(granule, block_id)])
        self._store(index, request, names, first_copies, self._hash_tokens)

    def successor_unknown(self, block_id: int) -> None:
        """It is not known any more what follows a block."""
        self._release(self._successors, block_id)

    def _store(
        self,
        index: int,
        request: Request,
        names: Sequence[BlockHash] | BlockNames,
        ordinals: Sequence[int],
        unit_tokens: int,
    ) -> None:
        for queue in self._queues if ordinals else ():
            queue.store(index, request, names, ordinals, unit_tokens)

    # Copies

    def _hold(
        self,
        holders: _Holders,
        index: int,
        names: Sequence[BlockHash] | BlockNames,
        units: Sequence[tuple[int, int]],
    ) -> list[int]:
        """Note which blocks hold names; return the ordinals of those that no other block held.

        ``index`` is the group's in the events; ``units`` are (ordinal, block id), ascending.
        """
        first_copies, copies = [], self._copies
        for ordinal, block_id in units:
            name = names[ordinal]
            holders.setdefault(block_id, (index, []))[1].append(name)
            key = index, name
            num_held = copies.get(key, 0)
            copies[key] = num_held + 1
            if not num_held:
                first_copies.append(ordinal)
        return first_copies

    def _release(self, holders: _Holders, block_id: int) -> None:
        """Drop what is noted of a block, if anything."""
        if block_id in holders:
            self._drop_copies(*holders.pop(block_id))

    def _drop_copies(self, index: int, names: Sequence[BlockHash]) -> None:
        gone = [name for name in names if not _one_less(self._copies, (index, name))]
        group = self._groups.get(index)
        if group is not None and group.unit_tokens > group.block_tokens:
            gone = self._broken(group, gone)
        for queue in self._queues if gone else ():
            queue.remove(index, gone)

    # Blocks finer than a granule, in groups that hold whole prefixes

    def _completed(
        self, group: AnnouncedGroup, request: Request, ordinals: Sequence[int]
    ) -> list[int]:
        """Count blocks that are held now; return the granules that have all of theirs."""
        per_granule, complete = group.unit_tokens // group.block_tokens, []
        for ordinal in ordinals:
            granule = request.block_hashes[ordinal // per_granule]
            self._digest_bytes = len(granule)
            self._parts[group.group_id, granule] += 1
            if self._parts[group.group_id, granule] == per_granule:
                complete.append(ordinal // per_granule)
        return complete

    def _broken(self, group: AnnouncedGroup, names: Sequence[BlockHash]) -> list[BlockHash]:
        """Count blocks that are gone; return the granules that had all of theirs."""
        # A block that ends inside a granule bears the granule's name and two bytes more.
        granules = [BlockHash(name[: self._digest_bytes]) for name in names]
        all_but_one = group.unit_tokens // group.block_tokens - 1
        return [g for g in granules if _one_less(self._parts, (group.group_id, g)) == all_but_one]


def _one_less(counter: Counter, key: tuple[int, BlockHash]) -> int:
    """Count one down; return what is left."""
    counter[key] -= 1
    return counter[key] or counter.pop(key)
