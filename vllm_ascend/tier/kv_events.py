# SPDX-License-Identifier: Apache-2.0
"""KV events of the tier, for routers: which rows it holds.

An event tells of units of rows, in tokens and names as for the device, but with another medium. It
does not tell of tails: a router finds as much as the tier brings at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vllm.distributed.kv_events import BlockRemoved, KVCacheEvent
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash
from vllm.v1.request import Request

from vllm_ascend.core.events.kv_event_queue import (
    AnnotatedBlockStored,
    continues,
    units_of,
)
from vllm_ascend.core.layout.block_names import BlockNames
from vllm_ascend.tier.layout import ROWS, TierLayout

HOST_MEDIUM = "CPU"
STORE_MEDIUM = "EXTERNAL"


class TierEvents:
    """Events until they are taken, in the order in which they happened."""

    def __init__(self, layout: TierLayout, *, is_remote: bool) -> None:
        """Tell nothing yet.

        Args:
            layout: What objects hold.
            is_remote: They are in a store that others share, not in this host's memory.
        """
        self._layout = layout
        self._medium = STORE_MEDIUM if is_remote else HOST_MEDIUM
        self._events: list[KVCacheEvent] = []
        # Where draft layers look ahead, several objects hold the rows of one unit's name.
        self._names: dict[bytes, BlockHash] = {}
        self._num_objects: Counter[BlockHash] = Counter()

    def stored(self, key: bytes, request: Request, end: int) -> None:
        """Tell of an object that can be loaded now, if it holds rows.

        Args:
            key: The object.
            request: Whose rows it holds.
            end: Where these end, in tokens.
        """
        if key[:1] != ROWS or key in self._names:
            return
        unit = self._layout.unit
        names = BlockNames(request.block_hashes, self._layout.hash_tokens, unit)
        ordinal = end // unit - 1
        name = names[ordinal]
        self._names[key] = name
        self._num_objects[name] += 1
        if self._num_objects[name] > 1:
            return
        told = units_of(request, names, ordinal, ordinal + 1, unit)
        event = AnnotatedBlockStored(medium=self._medium, **told)
        if not (self._events and continues(self._events[-1], event)):
            self._events.append(event)

    def gone(self, keys: Iterable[bytes]) -> None:
        """Tell of objects that cannot be loaded any more."""
        removed = []
        for key in keys:
            name = self._names.pop(key, None)
            if name is None:
                continue
            self._num_objects[name] -= 1
            if not self._num_objects[name]:
                del self._num_objects[name]
                removed.append(maybe_convert_block_hash(name))
        if removed:
            self._events.append(BlockRemoved(removed, medium=self._medium))

    def take(self) -> list[KVCacheEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events
