# SPDX-License-Identifier: Apache-2.0
"""How an engine's KV events are to be read, as the engine itself tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DESCRIPTION_TAG = "kv_cache_group"


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
        whole_blocks: Hits at multiples of this copy no block.
        least_gain: What a hit anywhere else must gain over the last one at such a multiple.
    """

    num_groups: int
    alignment: int
    hash_tokens: int
    whole_blocks: int
    least_gain: int


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
                whole_blocks=numbers["whole_block_tokens"],
                least_gain=numbers["least_gain_tokens"],
            ),
        )
    except (AttributeError, KeyError, ValueError) as error:
        raise KVEventError(f"a group's description cannot be read: {keys!r}") from error
