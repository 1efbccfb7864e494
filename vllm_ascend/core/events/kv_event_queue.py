# SPDX-License-Identifier: Apache-2.0
"""The wire format of KV events: vLLM's classes, filled so that they describe themselves.

Nothing is counted here; what is told and when is decided in ``kv_event_log``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
)
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
)
from vllm.v1.request import Request

from vllm_ascend.core.events.announcement import AnnouncedGroup
from vllm_ascend.core.layout.block_names import BlockNames
from vllm_ascend.kv_events.layout import DESCRIPTION_TAG, EngineRules

if TYPE_CHECKING or "kv_cache_spec_kind" not in BlockStored.__struct_fields__:

    class AnnotatedBlockStored(BlockStored, tag="BlockStored"):  # type: ignore[call-arg]
        """``BlockStored`` with the two fields that vLLM 0.23.0 appends to it.

        Decoders of vLLM 0.20.2's schema pass over them; routers that know them tell by them which
        groups hold whole prefixes.
        """

        kv_cache_spec_kind: str | None = None
        kv_cache_spec_sliding_window: int | None = None

else:
    AnnotatedBlockStored = BlockStored


# Later releases hash each key with its kind, and go on telling the keys alone.
_as_told = getattr(kv_cache_utils, "to_event_extra_keys", list)


class KVEventQueue:
    """Events until they are taken, in the order in which they happened."""

    def __init__(self) -> None:
        self.groups: dict[int, AnnouncedGroup] = {}  # those that were described, by index
        self._descriptions: list[BlockStored] = []
        self._events: list[KVCacheEvent] = []

    def take(self) -> list[KVCacheEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def describe(self, groups: Sequence[AnnouncedGroup], rules: EngineRules) -> None:
        """Tell how to read the events, now and after every clearing."""
        self.groups = {group.group_id: group for group in groups}
        self._descriptions = [self._describe(group, rules) for group in groups]
        self._events += self._descriptions

    def _describe(self, group: AnnouncedGroup, rules: EngineRules) -> BlockStored:
        facts = {
            "rule": group.rule,
            "tail_tokens": group.tail_tokens,
            "draft": int(group.is_draft),
            "groups": rules.num_groups,
            "alignment_tokens": rules.alignment,
            "hash_tokens": rules.hash_tokens,
        }
        # Strings only: some routers' decoders know no other kind of key.
        keys = (DESCRIPTION_TAG, *(f"{name}={value}" for name, value in facts.items()))
        return self._stored(
            group.group_id,
            block_hashes=[],
            parent_block_hash=None,
            token_ids=[],
            block_size=group.unit_tokens,
            lora_id=None,
            lora_name=None,
            extra_keys=[keys],
        )

    def clear(self) -> None:
        """Tell that nothing is cached any more."""
        self._events += [AllBlocksCleared(), *self._descriptions]

    def remove(self, group_id: int, names: Sequence[BlockHash]) -> None:
        """Tell of names that no block holds any more."""
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
        """Tell of units of a request, one event per contiguous run::

            unit i            tokens [i * unit_tokens, (i + 1) * unit_tokens)
            run [start, end)  tokens [start * unit_tokens, end * unit_tokens)
            its parent        unit start - 1; none at the request's start

        Args:
            names: The names of the request's units, by ordinal.
            ordinals: Which are told, ascending.
        """
        for start, end in runs(ordinals):
            event = self._stored(group_id, **units_of(request, names, start, end, unit_tokens))
            if not (self._events and continues(self._events[-1], event)):
                self._events.append(event)

    def _stored(self, group_id: int, **fields: Any) -> AnnotatedBlockStored:
        """Return an event with what is the same for all of a group."""
        group = self.groups.get(group_id)  # none: the index of a draft group's successors
        return AnnotatedBlockStored(
            medium=MEDIUM_GPU,
            group_idx=group_id,
            kv_cache_spec_kind=group.kind if group else None,
            kv_cache_spec_sliding_window=group.window if group else None,
            **fields,
        )


def units_of(
    request: Request,
    names: Sequence[BlockHash] | BlockNames,
    start: int,
    end: int,
    unit_tokens: int,
) -> dict[str, Any]:
    """Return what an event tells of the units ``[start, end)`` of a request, wherever they are."""
    lora = request.lora_request
    return {
        "block_hashes": [maybe_convert_block_hash(names[i]) for i in range(start, end)],
        "parent_block_hash": maybe_convert_block_hash(names[start - 1]) if start else None,
        "token_ids": request.all_token_ids[start * unit_tokens : end * unit_tokens],
        "block_size": unit_tokens,
        "lora_id": lora.adapter_id if lora else None,
        "lora_name": lora.name if lora else None,
        "extra_keys": _extra_keys(request, start, end, unit_tokens),
    }


def continues(last: KVCacheEvent, event: AnnotatedBlockStored) -> bool:
    """Add an event's units to the last one if they follow on in the same group; say whether."""
    units = (event.group_idx, event.block_size)
    if not isinstance(last, AnnotatedBlockStored) or (last.group_idx, last.block_size) != units:
        return False
    if last.block_hashes[-1:] != [event.parent_block_hash]:
        return False
    assert last.extra_keys is not None and event.extra_keys is not None
    last.block_hashes += event.block_hashes
    last.token_ids += event.token_ids
    last.extra_keys += event.extra_keys
    return True


def _extra_keys(
    request: Request, start: int, end: int, unit_tokens: int
) -> list[tuple[Any, ...] | None]:
    """Return what the hash of each unit ``[start, end)`` covers besides its tokens."""
    covers_more = request.mm_features or request.lora_request or request.cache_salt
    if not covers_more and request.prompt_embeds is None:
        return [None] * (end - start)
    extra_keys, multimodal_index = [], 0
    for first in range(start * unit_tokens, end * unit_tokens, unit_tokens):
        keys, multimodal_index = generate_block_hash_extra_keys(
            request, first, first + unit_tokens, multimodal_index
        )
        extra_keys.append(keys)
    return _as_told(extra_keys)


def runs(ordinals: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the longest runs ``[start, end)`` of ascending ordinals."""
    first = 0
    for i in range(1, len(ordinals) + 1):
        if i == len(ordinals) or ordinals[i] != ordinals[i - 1] + 1:
            yield ordinals[first], ordinals[i - 1] + 1
            first = i
