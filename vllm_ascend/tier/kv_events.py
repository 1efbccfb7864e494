# SPDX-License-Identifier: Apache-2.0
"""KV events of the tier, for routers: which rows it holds.

An event tells of units of rows, in tokens and names as for the device, but with another medium. It
does not tell of tails: a router finds as much as the tier brings at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

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
from vllm_ascend.tier.objects import Gone

HOST_MEDIUM = "CPU"
STORE_MEDIUM = "EXTERNAL"
DISK_MEDIUM = "DISK"


class _Unit(NamedTuple):
    """A unit of rows: its name, and what an event tells of it."""

    name: BlockHash
    told: dict[str, Any]


class _Medium:
    """What routers were told of one medium."""

    def __init__(self, medium: str, events: list[KVCacheEvent]) -> None:
        self._medium, self._events = medium, events
        # Where draft layers look ahead, several objects hold the rows of one unit's name.
        self._names: dict[bytes, BlockHash] = {}
        self._num_objects: Counter[BlockHash] = Counter()

    def __contains__(self, key: bytes) -> bool:
        return key in self._names

    def stored(self, key: bytes, unit: _Unit) -> None:
        """Tell of an object of which nothing was told."""
        self._names[key] = unit.name
        self._num_objects[unit.name] += 1
        if self._num_objects[unit.name] > 1:
            return
        # Lists of its own: units that follow on are added to them.
        told = {k: list(v) if isinstance(v, list) else v for k, v in unit.told.items()}
        event = AnnotatedBlockStored(medium=self._medium, **told)
        last = self._events[-1] if self._events else None
        is_same = getattr(last, "medium", None) == self._medium
        if not (last is not None and is_same and continues(last, event)):
            self._events.append(event)

    def gone(self, keys: list[bytes]) -> None:
        """Tell of objects that are not there any more, as far as they were told of."""
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


class TierEvents:
    """Events until they are taken, in the order in which they happened."""

    def __init__(self, layout: TierLayout, *, is_remote: bool) -> None:
        """Tell nothing yet.

        Args:
            layout: What objects hold.
            is_remote: They are in a store that others share, not in this host's memory.
        """
        self._layout = layout
        self._events: list[KVCacheEvent] = []
        self._told = _Medium(STORE_MEDIUM if is_remote else HOST_MEDIUM, self._events)

    def found(self, key: bytes, request: Request, end: int) -> None:
        """Tell of an object that can be loaded now, if it holds rows.

        Args:
            key: The object.
            request: Whose rows it holds.
            end: Where these end, in tokens.
        """
        if key[:1] == ROWS and key not in self._told:
            self._told.stored(key, self._unit(request, end))

    def _unit(self, request: Request, end: int) -> _Unit:
        size = self._layout.unit
        names = BlockNames(request.block_hashes, self._layout.hash_tokens, size)
        ordinal = end // size - 1
        return _Unit(names[ordinal], units_of(request, names, ordinal, ordinal + 1, size))

    def gone(self, gone: Gone) -> None:
        """Tell of objects that cannot be loaded any more."""
        self._told.gone(gone.keys)

    def take(self) -> list[KVCacheEvent]:
        """Return the events since the last call."""
        events = list(self._events)
        self._events.clear()
        return events


class TwoLevelEvents(TierEvents):
    """Events of memory and of a disk below, which are told apart.

    An object that an earlier engine has left is told of when a request first hits it: until then
    nobody knows its tokens.
    """

    def __init__(self, layout: TierLayout) -> None:
        """Tell nothing yet."""
        super().__init__(layout, is_remote=False)
        self._on_disk = _Medium(DISK_MEDIUM, self._events)
        self._units: dict[bytes, _Unit] = {}  # of those that move

    def found(self, key: bytes, request: Request, end: int) -> None:
        """Note what an object is that has come to a level, or will; see :class:`TierEvents`."""
        if key[:1] == ROWS:
            self._units[key] = self._unit(request, end)

    def gone(self, gone: Gone) -> None:
        """Tell of what has come to a level, and what has left it."""
        assert gone.moved is not None, "there are two levels"
        moved = gone.moved
        self._tell(self._told, {key: levels.memory for key, levels in moved.items()})
        self._tell(self._on_disk, {key: levels.disk for key, levels in moved.items()})
        for key, levels in moved.items():
            if not levels.is_moving:
                self._units.pop(key, None)

    def _tell(self, medium: _Medium, moved: Mapping[bytes, bool]) -> None:
        """Tell of one level: which objects that may have moved are there now."""
        for key, is_there in moved.items():
            if is_there and key in self._units and key not in medium:
                medium.stored(key, self._units[key])
        medium.gone([key for key, is_there in moved.items() if not is_there])
