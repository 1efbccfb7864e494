# SPDX-License-Identifier: Apache-2.0
"""What routers outside are told of the cache: KV events from which every look-up can be replayed.

The events are vLLM's own (``BlockStored``, ``BlockRemoved``, ``AllBlocksCleared``); the schema of
vLLM 0.20.2 decodes them. docs/kv-events.md is written for who reads them. In short:

- A name is stored when its first copy is cached, and removed when its last one is gone.
- A group that holds whole prefixes is told of in granules, however many of them a block holds.
- What a draft layer's rows depend on, the granule behind a block, is told under a group index of
  its own (:meth:`KVEventLog.successor_known`).
- Every group is described once, by an event without blocks, and again after everything is cleared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vllm.distributed.kv_events import KVCacheEvent
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.events.kv_event_queue import (
    PREFIX,
    AnnouncedGroup,
    HitRules,
    KVEventQueue,
    runs,
)
from vllm_ascend.core.pool.block_names import BlockNames


class KVEventLog:
    """Collects events until they are taken. One per pool, and only where events are enabled."""

    def __init__(self, hash_tokens: int) -> None:
        self._hash_tokens = hash_tokens
        self._queue = KVEventQueue()
        self._num_groups = 0
        self._prefix_groups: frozenset[int] = frozenset()
        self._ends_inside: frozenset[int] = frozenset()
        self._parts_per_granule: dict[int, int] = {}
        # (group, granule) -> its parts that are held
        self._parts: Counter[tuple[int, BlockHash]] = Counter()
        self._digest_bytes = 0
        # (announced group, name) -> blocks that hold it
        self._copies: Counter[tuple[int, BlockHash]] = Counter()
        # By block id: what was told of the block, and what of its successor.
        self._names_of: dict[int, tuple[int, list[BlockHash]]] = {}
        self._successor_of: dict[int, tuple[int, BlockHash]] = {}

    def take(self) -> list[KVCacheEvent]:
        """Return the events since the last call."""
        return self._queue.take()

    # Groups

    def describe(self, groups: Sequence[AnnouncedGroup], rules: HitRules) -> None:
        """Say how to read the events. Called once, before anything is stored."""
        self._num_groups = len(groups)
        self._prefix_groups = frozenset(g.group_id for g in groups if g.rule == PREFIX)
        self._ends_inside = frozenset(g.group_id for g in groups if g.ends_inside)
        self._parts_per_granule = {
            g.group_id: self._hash_tokens // g.block_tokens
            for g in groups
            if g.rule == PREFIX and g.block_tokens < self._hash_tokens
        }
        self._queue.describe(groups, rules)

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
        """Some blocks of a request were entered.

        Args:
            names: Their names, by ordinal.
            blocks: All blocks of the request in the group.
            ordinals: Which were entered, ascending.
        """
        if group_id in self._ends_inside:
            return  # it is told when its granules are collected
        if block_tokens > self._hash_tokens and group_id in self._prefix_groups:
            per_block = block_tokens // self._hash_tokens
            for start, end in runs(ordinals):
                granules = range(start * per_block, end * per_block)
                self.granules_stored(group_id, request, blocks, granules, per_block)
            return
        first_copies = self._hold(group_id, names, [(i, blocks[i].block_id) for i in ordinals])
        if group_id in self._parts_per_granule:
            complete = self._completed(group_id, request, first_copies)
            self._queue.store(group_id, request, request.block_hashes, complete, self._hash_tokens)
        else:
            self._queue.store(group_id, request, names, first_copies, block_tokens)

    def granules_stored(
        self,
        group_id: int,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        granules: range,
        per_block: int,
    ) -> None:
        """A request's granules will be hittable once the step being scheduled has run.

        Args:
            blocks: The request's blocks in the group.
            granules: Which, counted from the request's start.
            per_block: Granules per block.
        """
        units = [(i, blocks[i // per_block].block_id) for i in granules]
        first_copies = self._hold(group_id, request.block_hashes, units)
        self._queue.store(group_id, request, request.block_hashes, first_copies, self._hash_tokens)

    def granules_withdrawn(self, block_id: int, names: Sequence[BlockHash]) -> None:
        """Granules of a block will not be written after all."""
        known = self._names_of.get(block_id)
        if known is None:
            return
        group_id, all_names = known
        withdrawn = set(names)
        all_names[:] = [name for name in all_names if name not in withdrawn]
        if not all_names:
            del self._names_of[block_id]  # nobody will evict it
        self._drop_copies(group_id, names)

    def block_evicted(self, block_id: int) -> None:
        """A block's content was forgotten, and with it what was known of its successor."""
        known = self._names_of.pop(block_id, None)
        if known is not None:
            self._drop_copies(*known)
        self.successor_unknown(block_id)

    def cleared(self) -> None:
        """Everything was forgotten."""
        self._copies.clear()
        self._parts.clear()
        self._names_of.clear()
        self._successor_of.clear()
        self._queue.clear()

    # Successors

    def successor_known(
        self, group_id: int, request: Request, block_id: int, end_tokens: int
    ) -> None:
        """A block of a draft group is cached, and was followed by the request's next granule.

        Told as that granule, ``[end_tokens, end_tokens + hash_tokens)`` behind the block's end,
        under the group's index plus the number of groups.
        """
        index = end_tokens // self._hash_tokens
        announced = group_id + self._num_groups
        name = request.block_hashes[index]
        if self._successor_of.get(block_id) == (announced, name):
            return
        self.successor_unknown(block_id)
        self._successor_of[block_id] = announced, name
        if self._add_copy(announced, name):
            self._queue.store(announced, request, request.block_hashes, [index], self._hash_tokens)

    def successor_unknown(self, block_id: int) -> None:
        """It is not known any more what follows a block."""
        known = self._successor_of.pop(block_id, None)
        if known is not None:
            self._drop_copies(known[0], [known[1]])

    # Copies

    def _add_copy(self, group_id: int, name: BlockHash) -> bool:
        """Count a copy; return whether it is the first."""
        self._copies[group_id, name] += 1
        return self._copies[group_id, name] == 1

    def _drop_copies(self, group_id: int, names: Sequence[BlockHash]) -> None:
        gone = []
        for name in names:
            self._copies[group_id, name] -= 1
            if not self._copies[group_id, name]:
                del self._copies[group_id, name]
                gone.append(name)
        if group_id in self._parts_per_granule:
            gone = self._broken(group_id, gone)
        if gone:
            self._queue.remove(group_id, gone)

    def _hold(
        self,
        group_id: int,
        names: Sequence[BlockHash] | BlockNames,
        units: Sequence[tuple[int, int]],
    ) -> list[int]:
        """Note what blocks hold; return the ordinals of what no other block held.

        Args:
            units: Ordinals, ascending, each with the id of the block.
        """
        first_copies = []
        for ordinal, block_id in units:
            name = names[ordinal]
            self._names_of.setdefault(block_id, (group_id, []))[1].append(name)
            if self._add_copy(group_id, name):
                first_copies.append(ordinal)
        return first_copies

    # Blocks finer than a granule, in groups that hold whole prefixes

    def _completed(self, group_id: int, request: Request, ordinals: Sequence[int]) -> list[int]:
        """Count parts of granules that are held now; return the granules that are whole."""
        num_parts, complete = self._parts_per_granule[group_id], []
        for ordinal in ordinals:
            granule = request.block_hashes[ordinal // num_parts]
            self._digest_bytes = len(granule)
            self._parts[group_id, granule] += 1
            if self._parts[group_id, granule] == num_parts:
                complete.append(ordinal // num_parts)
        return complete

    def _broken(self, group_id: int, names: Sequence[BlockHash]) -> list[BlockHash]:
        """Count parts that are gone; return the granules that were whole."""
        broken = []
        for name in names:
            # A part that does not end it is named by it and two bytes more.
            granule = BlockHash(name[: self._digest_bytes])
            if self._parts[group_id, granule] == self._parts_per_granule[group_id]:
                broken.append(granule)
            self._parts[group_id, granule] -= 1
            if not self._parts[group_id, granule]:
                del self._parts[group_id, granule]
        return broken
