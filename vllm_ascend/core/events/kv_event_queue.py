# SPDX-License-Identifier: Apache-2.0
"""KV events as routers get them: the classes of vLLM, filled so that they describe themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
)
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
)
from vllm.v1.request import Request

from vllm_ascend.core.pool.block_names import BlockNames

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
        block_tokens: Tokens per block.
        unit_tokens: Tokens per announced name.
        ends_inside: Hits may end inside a block.
        is_draft: A block counts only together with the granule behind it.
        kind: vLLM's name of the spec's kind.
        window: The spec's window in tokens, if it has one.
    """

    group_id: int
    rule: str
    block_tokens: int
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


class KVEventQueue:
    """Events until they are taken, in the order in which they happened."""

    def __init__(self) -> None:
        self._events: list[KVCacheEvent] = []
        self._groups: dict[int, AnnouncedGroup] = {}
        self._rules: HitRules | None = None

    def take(self) -> list[KVCacheEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def describe(self, groups: Sequence[AnnouncedGroup], rules: HitRules) -> None:
        """Tell how to read the events, here and behind every clearing."""
        self._groups = {group.group_id: group for group in groups}
        self._rules = rules
        self._events += map(self._description, groups)

    def clear(self) -> None:
        """Tell that nothing is cached any more."""
        self._events.append(AllBlocksCleared())
        self._events += map(self._description, self._groups.values())

    def remove(self, group_id: int, names: Sequence[BlockHash]) -> None:
        """Tell of names that nothing stands behind any more."""
        hashes = [maybe_convert_block_hash(name) for name in names]
        self._events.append(BlockRemoved(hashes, medium=MEDIUM_GPU, group_idx=group_id))

    def store(
        self,
        group_id: int,
        request: Request,
        names: Sequence[BlockHash] | BlockNames,
        ordinals: Sequence[int],
        unit_tokens: int,
    ) -> None:
        """Tell of units of a request, one event per contiguous run.

        Args:
            names: The names of the request's units, by ordinal.
            ordinals: Which, ascending.
            unit_tokens: Tokens per unit.
        """
        for start, end in runs(ordinals):
            self._store_run(group_id, request, names, start, end, unit_tokens)

    def _store_run(
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
        extra_keys = _extra_keys(request, start, end, unit_tokens)
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


def _extra_keys(
    request: Request, start: int, end: int, unit_tokens: int
) -> list[tuple[Any, ...] | None]:
    """Return what the hash of each unit ``[start, end)`` covers besides its tokens."""
    if not (
        request.lora_request
        or request.mm_features
        or request.cache_salt
        or request.prompt_embeds is not None
    ):
        return [None] * (end - start)
    extra_keys = []
    multimodal_index = 0
    for unit in range(start, end):
        keys, multimodal_index = generate_block_hash_extra_keys(
            request, unit * unit_tokens, (unit + 1) * unit_tokens, multimodal_index
        )
        extra_keys.append(keys)
    return extra_keys


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
