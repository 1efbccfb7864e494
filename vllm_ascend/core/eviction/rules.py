# SPDX-License-Identifier: Apache-2.0
"""Rules that say which kept block is given up next.

Blocks that nobody uses wait in queues, one per class of what they belong to; in each the least
recently used one is at the head. A rule picks the queue that gives up its head. It sees the times
of the heads and the lengths of the queues, and changes nothing.

Example: two queues whose heads were used last at 40 and 10, now 50. LRU picks the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vllm_ascend.core.eviction.block_classes import NUM_QUEUES, BlockClass

EMPTY = -1
"""The time of the head of an empty queue."""

PROTECTED_PERCENT = 50  # of the free memory
RETURNING_QUEUES = (int(BlockClass.RETURNING), int(BlockClass.RETURNING_HIT))
_OTHER_QUEUES = tuple(int(c) for c in BlockClass if c not in RETURNING_QUEUES)


class EvictionRule(Protocol):
    """Picks the queue that gives up its head."""

    @property
    def name(self) -> str:
        """What the rule in force is called in logs and metrics."""

    def victim(self, heads: Sequence[int], lengths: Sequence[int], room: int, now: int) -> int:
        """Return a queue that is not empty.

        Args:
            heads: By queue, when its head was used last; :data:`EMPTY` if it has none. At least
                one has.
            lengths: By queue, how many wait in it.
            room: How many may wait: returning prompts are protected up to a share of it.
            now: The time; no head is later.
        """


def candidates(heads: Sequence[int], lengths: Sequence[int], room: int) -> Sequence[int]:
    """Return the queues that may give up a block while returning prompts are protected.

    Theirs may once they have more than their share of the room, or nothing else waits.
    """
    num_protected = sum(lengths[queue] for queue in RETURNING_QUEUES)
    if 100 * num_protected > PROTECTED_PERCENT * room:
        return range(NUM_QUEUES)
    others = [queue for queue in _OTHER_QUEUES if heads[queue] != EMPTY]
    return others or RETURNING_QUEUES


def _oldest(heads: Sequence[int], queues: Sequence[int]) -> int:
    """Return the queue among some whose head is the oldest. One of them is not empty."""
    return min((q for q in queues if heads[q] != EMPTY), key=heads.__getitem__)


class Lru:
    """The least recently used block goes first, whatever it is."""

    name = "lru"

    def victim(self, heads: Sequence[int], lengths: Sequence[int], room: int, now: int) -> int:
        """See :class:`EvictionRule`."""
        return _oldest(heads, range(NUM_QUEUES))


class ProtectReturning:
    """What prompts that came again leave goes last, as long as it has half of the room."""

    name = "protect"

    def victim(self, heads: Sequence[int], lengths: Sequence[int], room: int, now: int) -> int:
        """See :class:`EvictionRule`."""
        queues = candidates(heads, lengths, room)
        # Whoever has too much gives up his own.
        return _oldest(heads, RETURNING_QUEUES if len(queues) == NUM_QUEUES else queues)
