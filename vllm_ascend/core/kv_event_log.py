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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm.distributed.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
)
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    KVCacheBlock,
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
)
from vllm.v1.request import Request

from vllm_ascend.core.block_names import BlockNames

DESCRIPTION_TAG = "kv_cache_group"
PREFIX, TAIL, OTHER = "prefix", "tail", "other"


class AnnotatedBlockStored(BlockStored, tag="BlockStored"):  # type: ignore[call-arg]
    """``BlockStored`` with the two fields that vLLM 0.23.0 appends to it.

    Decoders of vLLM 0.20.2's schema pass over them; routers that know them tell by them which
    groups hold whole prefixes.
    """

    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


@dataclass(frozen=True)
class AnnouncedGroup:
    """How one KV cache group appears in the events.

    Attributes:
        rule: ``PREFIX``: a hit needs all units before it; ``TAIL``: only those that hold one of
            the last ``tail_tokens`` tokens before it; ``OTHER``: no number says which.
        unit_tokens: Tokens per announced name.
        ends_inside: Hits may end inside a block.
        is_draft: A block counts only together with the granule behind it.
        kind: vLLM's name of the spec's kind.
        window: The spec's window in tokens, if it has one.
    """

    group_id: int
    rule: str
    unit_tokens: int
    tail_tokens: int
    ends_inside: bool
    is_draft: bool
    kind: str
    window: int | None


@dataclass(frozen=True)
class HitRules:
    """Where hits may end, in tokens.

    Attributes:
        alignment: Hits are multiples of this.
        hash_tokens: Tokens per hash of a request.
        whole_blocks: Hits at multiples of this end with whole blocks in every group.
        least_gain: What a hit that ends inside a block must gain over the last one that does not.
    """

    alignment: int
    hash_tokens: int
    whole_blocks: int
    least_gain: int


class KVEventLog:
    """Collects events until they are taken. One per pool, and only where events are enabled."""

    def __init__(self, hash_tokens: int) -> None:
        self._hash_tokens = hash_tokens
        self._events: list[KVCacheEvent] = []
        self._groups: dict[int, AnnouncedGroup] = {}
        self._rules: HitRules | None = None
        self._prefix_groups: frozenset[int] = frozenset()
        self._ends_inside: frozenset[int] = frozenset()
        # (announced group, name) -> blocks that hold it
        self._copies: Counter[tuple[int, BlockHash]] = Counter()
        # By block id: what was told of the block, and what of its successor.
        self._names_of: dict[int, tuple[int, list[BlockHash]]] = {}
        self._successor_of: dict[int, tuple[int, BlockHash]] = {}

    def take(self) -> list[KVCacheEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    # Groups

    def describe(self, groups: Sequence[AnnouncedGroup], rules: HitRules) -> None:
        """Say how to read the events. Called once, before anything is stored."""
        self._groups = {group.group_id: group for group in groups}
        self._prefix_groups = frozenset(g.group_id for g in groups if g.rule == PREFIX)
        self._ends_inside = frozenset(g.group_id for g in groups if g.ends_inside)
        self._rules = rules
        self._events += map(self._description, groups)

    def _description(self, group: AnnouncedGroup) -> BlockStored:
        assert self._rules is not None
        facts = {
            "rule": group.rule,
            "tail_tokens": group.tail_tokens,
            "draft": int(group.is_draft),
            "groups": len(self._groups),
            "alignment_tokens": self._rules.alignment,
            "hash_tokens": self._rules.hash_tokens,
            "whole_block_tokens": self._rules.whole_blocks,
            "least_gain_tokens": self._rules.least_gain,
        }
        # Strings only: some routers' decoders know no other kind of key.
        keys = (DESCRIPTION_TAG, *(f"{name}={value}" for name, value in facts.items()))
        return AnnotatedBlockStored(
            block_hashes=[],
            parent_block_hash=None,
            token_ids=[],
            block_size=group.unit_tokens,
            lora_id=None,
            medium=MEDIUM_GPU,
            lora_name=None,
            extra_keys=[keys],
            group_idx=group.group_id,
            kv_cache_spec_kind=group.kind,
            kv_cache_spec_sliding_window=group.window,
        )

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
        if block_tokens <= self._hash_tokens or group_id not in self._prefix_groups:
            self._store_units(
                group_id, request, names, [(i, blocks[i].block_id) for i in ordinals], block_tokens
            )
            return
        per_block = block_tokens // self._hash_tokens
        for start, end in runs(ordinals):
            granules = range(start * per_block, end * per_block)
            self.granules_stored(group_id, request, blocks, granules, per_block)

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
        self._store_units(group_id, request, request.block_hashes, units, self._hash_tokens)

    def granules_withdrawn(self, block_id: int, names: Sequence[BlockHash]) -> None:
        """Granules of a block will not be written after all."""
        known = self._names_of.get(block_id)
        if known is None:
            return
        group_id, all_names = known
        withdrawn = set(names)
        all_names[:] = [name for name in all_names if name not in withdrawn]
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
        self._names_of.clear()
        self._successor_of.clear()
        self._events.append(AllBlocksCleared())
        self._events += map(self._description, self._groups.values())

    def _store_units(
        self,
        group_id: int,
        request: Request,
        names: Sequence[BlockHash] | BlockNames,
        units: Sequence[tuple[int, int]],
        unit_tokens: int,
    ) -> None:
        """Note units, given by ordinal and block id; tell of those that no other block holds."""
        first_copies = []
        for ordinal, block_id in units:
            name = names[ordinal]
            self._names_of.setdefault(block_id, (group_id, []))[1].append(name)
            if self._add_copy(group_id, name):
                first_copies.append(ordinal)
        for start, end in runs(first_copies):
            self._store(group_id, request, names, start, end, unit_tokens)

    # Successors

    def successor_known(
        self, group_id: int, request: Request, block_id: int, end_tokens: int
    ) -> None:
        """A block of a draft group is cached, and was followed by the request's next granule.

        Told as that granule, ``[end_tokens, end_tokens + hash_tokens)`` behind the block's end,
        under the group's index plus the number of groups.
        """
        index = end_tokens // self._hash_tokens
        announced = group_id + len(self._groups)
        name = request.block_hashes[index]
        if self._successor_of.get(block_id) == (announced, name):
            return
        self.successor_unknown(block_id)
        self._successor_of[block_id] = announced, name
        if self._add_copy(announced, name):
            hashes = request.block_hashes
            self._store(announced, request, hashes, index, index + 1, self._hash_tokens)

    def successor_unknown(self, block_id: int) -> None:
        """It is not known any more what follows a block."""
        known = self._successor_of.pop(block_id, None)
        if known is not None:
            self._drop_copies(known[0], [known[1]])

    # Copies and events

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
        if gone:
            self._remove(group_id, gone)

    def _remove(self, group_id: int, names: Sequence[BlockHash]) -> None:
        hashes = [maybe_convert_block_hash(name) for name in names]
        self._events.append(BlockRemoved(hashes, medium=MEDIUM_GPU, group_idx=group_id))

    def _store(
        self,
        group_id: int,
        request: Request,
        names: Sequence[BlockHash] | BlockNames,
        start: int,
        end: int,
        unit_tokens: int,
    ) -> None:
        """Tell of units ``[start, end)`` of a request: names, tokens and size fit each other."""
        hashes = [maybe_convert_block_hash(names[i]) for i in range(start, end)]
        parent = maybe_convert_block_hash(names[start - 1]) if start else None
        tokens = request.all_token_ids[start * unit_tokens : end * unit_tokens]
        extra_keys = []
        multimodal_index = 0
        for unit in range(start, end):
            keys, multimodal_index = generate_block_hash_extra_keys(
                request, unit * unit_tokens, (unit + 1) * unit_tokens, multimodal_index
            )
            extra_keys.append(keys)
        last = self._events[-1] if self._events else None
        if (
            isinstance(last, AnnotatedBlockStored)
            and last.group_idx == group_id
            and last.block_size == unit_tokens
            and last.block_hashes
            and last.block_hashes[-1] == parent
        ):
            assert last.extra_keys is not None
            last.block_hashes += hashes
            last.token_ids += tokens
            last.extra_keys += extra_keys
            return
        group, lora = self._groups.get(group_id), request.lora_request
        self._events.append(
            AnnotatedBlockStored(
                block_hashes=hashes,
                parent_block_hash=parent,
                token_ids=tokens,
                block_size=unit_tokens,
                lora_id=lora.adapter_id if lora else None,
                medium=MEDIUM_GPU,
                lora_name=lora.name if lora else None,
                extra_keys=extra_keys,
                group_idx=group_id,
                kv_cache_spec_kind=group.kind if group else None,
                kv_cache_spec_sliding_window=group.window if group else None,
            )
        )


def runs(ordinals: Sequence[int]) -> Iterable[tuple[int, int]]:
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
