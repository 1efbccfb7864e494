# SPDX-License-Identifier: Apache-2.0
"""How an engine's KV events are to be read, as the engine itself tells it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

DESCRIPTION_TAG = "kv_cache_group"
DEVICE = "GPU"  # so vLLM calls the device, whichever it is
_INT_HASH_MASK = (1 << 64) - 1
PLACE_BITS = 16


class KVEventError(ValueError):
    """An event contradicts the conventions of docs/kv-events.md."""


@dataclass(frozen=True)
class GroupRule:
    """Which of a group's units a hit rests on. Sizes in tokens.

    Attributes:
        rule: ``prefix``: all units before the hit; ``tail``: those that hold one of the last
            ``tail_tokens`` tokens before it; ``other``: not known, so nothing is ever a hit.
        unit_tokens: Tokens per announced name.
        is_draft: A unit that ends with a hash counts only together with the granule behind it,
            which is announced under ``group_idx + num_groups``.
    """

    rule: str
    unit_tokens: int
    tail_tokens: int = 0
    is_draft: bool = False


@dataclass(frozen=True)
class EngineRules:
    """What holds for all groups of an engine. Sizes in tokens.

    Attributes:
        num_groups: Groups that are described.
        alignment: Hits are multiples of this.
        hash_tokens: Tokens per hash; a shorter unit is named by the hash that covers it, and place.
    """

    num_groups: int
    alignment: int
    hash_tokens: int


def read_description(
    block_size: int, extra_keys: Sequence[Sequence[Any] | None] | None
) -> tuple[GroupRule, EngineRules] | None:
    """Return what an event without blocks says of its group; ``None`` if it says nothing.

    Args:
        block_size: The event's.
        extra_keys: The event's.

    Raises:
        KVEventError: It is a description, but not one that can be read.
    """
    keys = extra_keys[0] if extra_keys else None
    if not keys or keys[0] != DESCRIPTION_TAG:
        return None
    try:
        facts = dict(key.split("=", 1) for key in keys[1:])
        numbers = {name: int(value) for name, value in facts.items() if name != "rule"}
        return (
            GroupRule(
                rule=facts["rule"],
                unit_tokens=block_size,
                tail_tokens=numbers["tail_tokens"],
                is_draft=bool(numbers["draft"]),
            ),
            EngineRules(
                num_groups=numbers["groups"],
                alignment=numbers["alignment_tokens"],
                hash_tokens=numbers["hash_tokens"],
            ),
        )
    except (AttributeError, KeyError, ValueError) as error:
        raise KVEventError(f"a group's description cannot be read: {keys!r}") from error


def placed_name(name: Hashable, place: int) -> Hashable:
    """Return the name of a unit inside a granule: the granule's and two bytes more."""
    if isinstance(name, int):
        return (name << PLACE_BITS | place) & _INT_HASH_MASK
    assert isinstance(name, bytes)
    return name + place.to_bytes(PLACE_BITS // 8, "big")


class EventReader:
    """Reads an engine's events; what becomes of them is up to the subclass."""

    def __init__(self) -> None:
        self._rules: dict[int, GroupRule] = {}
        self._engine: EngineRules | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it is known how the engine's events are to be read."""
        return self._engine is not None and len(self._rules) == self._engine.num_groups

    def apply(self, events: Iterable[Any]) -> None:
        """Follow events, in the order in which the engine published them.

        Args:
            events: Objects with the fields of vLLM's event classes, from whatever decoder.

        Raises:
            KVEventError: Hashes, tokens and block size of an event do not fit each other.
        """
        for event in events:
            if getattr(event, "medium", None) not in (None, DEVICE):
                continue  # a connector's: it is not what the engine's look-up finds
            if getattr(event, "token_ids", None) is not None:
                self._read_stored(event)
            elif getattr(event, "block_hashes", None) is not None:
                self._removed(event.group_idx or 0, event.block_hashes)
            else:
                self._cleared()

    def _read_stored(self, event: Any) -> None:
        group, size = event.group_idx or 0, event.block_size
        if not event.block_hashes:
            description = read_description(size, event.extra_keys)
            if description is not None:
                self._rules[group], self._engine = description
            return
        if len(event.token_ids) != len(event.block_hashes) * size:
            raise KVEventError(
                f"{len(event.block_hashes)} blocks of {size} tokens do not have "
                f"{len(event.token_ids)} tokens (group {group})"
            )
        self._stored(group, event)

    def _stored(self, group: int, event: Any) -> None:
        """Units of a group are cached: one or more, each behind the one before it."""
        raise NotImplementedError

    def _removed(self, group: int, names: Sequence[Hashable]) -> None:
        """Units of a group are not cached any more."""
        raise NotImplementedError

    def _cleared(self) -> None:
        """Nothing is cached any more."""
        raise NotImplementedError


def freeze(keys: Any) -> Hashable:
    """Return extra keys with tuples for lists: decoders differ in which they make."""
    return tuple(map(freeze, keys)) if isinstance(keys, list | tuple) else keys
