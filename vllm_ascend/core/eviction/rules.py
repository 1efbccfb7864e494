# SPDX-License-Identifier: Apache-2.0
"""Rules that say which kept block is given up next.

Blocks that nobody uses wait in queues, one per class of what they belong to; in each the least
recently used one is at the head. A rule picks the queue that gives up its head. It sees the times
of the heads and the lengths of the queues, and changes nothing.

Example: two queues whose heads were used last at 40 and 10, now 50. LRU picks the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from vllm_ascend.core.eviction.block_classes import NUM_QUEUES, BlockClass

EMPTY = -1
"""The time of the head of an empty queue."""

PROTECTED_PERCENT = 50  # of the free memory
RETURNING_QUEUES = (int(BlockClass.RETURNING), int(BlockClass.RETURNING_HIT))
# Queue of returning prompts -> the queue that takes what is beyond their share.
OVERFLOW_QUEUES = {
    int(BlockClass.RETURNING): int(BlockClass.OVERFLOW),
    int(BlockClass.RETURNING_HIT): int(BlockClass.OVERFLOW_HIT),
}
OVERFLOWED = tuple(OVERFLOW_QUEUES.values())
_ALL_RETURNING = (*OVERFLOW_QUEUES, *OVERFLOWED)
_UNPROTECTED_QUEUES = tuple(int(c) for c in BlockClass if c not in RETURNING_QUEUES)
_OTHER_QUEUES = tuple(int(c) for c in BlockClass if c not in _ALL_RETURNING)


class Waiting(NamedTuple):
    """Who waits, as a rule sees it.

    Attributes:
        heads: By queue, when its head was used last; :data:`EMPTY` if it has none.
        joined: The same, but where returning prompts had too much, when what they had to let go
            joined the others.
        lengths: By queue, how many wait in it.
        room: How many may wait: returning prompts are protected up to a share of it.
        now: The time; no head is later.
    """

    heads: Sequence[int]
    joined: Sequence[int]
    lengths: Sequence[int]
    room: int
    now: int


class EvictionRule(Protocol):
    """Picks the queue that gives up its head."""

    @property
    def name(self) -> str:
        """What the rule in force is called in logs and metrics."""

    @property
    def parts_prompts(self) -> bool:
        """Whether what a prompt added may go long before what it hit, and leave that behind."""

    def victim(self, waiting: Waiting) -> int:
        """Return a queue that is not empty; at least one is not."""

    def num_overflowing(self, lengths: Sequence[int], room: int) -> int:
        """Return how many blocks of returning prompts are to join the others as if used just now.

        The oldest of them do, when others join them. ``lengths``, ``room``: see
        :class:`Waiting`.
        """


def candidates(heads: Sequence[int], lengths: Sequence[int], room: int) -> Sequence[int]:
    """Return the queues that may give up a block while returning prompts are protected.

    Theirs may once they have more than their share of the room, or nothing else waits.
    """
    if num_overflowing(sum(lengths[queue] for queue in _ALL_RETURNING), room):
        return range(NUM_QUEUES)
    others = [queue for queue in _OTHER_QUEUES if heads[queue] != EMPTY]
    return others or _ALL_RETURNING


def num_overflowing(num_protected: int, room: int) -> int:
    """Return how many protected free blocks are too many, of ``room`` with these included."""
    return max(num_protected - room * PROTECTED_PERCENT // 100, 0)


def oldest(heads: Sequence[int], queues: Iterable[int]) -> int:
    """Return the queue among some whose head is the oldest. One of them is not empty."""
    return min((q for q in queues if heads[q] != EMPTY), key=heads.__getitem__)


class Lru:
    """The least recently used block goes first, whatever it is."""

    name = "lru"
    parts_prompts = False

    def victim(self, waiting: Waiting) -> int:
        """See :class:`EvictionRule`."""
        return oldest(waiting.heads, range(NUM_QUEUES))

    def num_overflowing(self, lengths: Sequence[int], room: int) -> int:
        """See :class:`EvictionRule`: all are alike."""
        return 0


class ProtectReturning:
    """What prompts that came again leave goes last, as long as it has half of the room."""

    name = "protect"
    parts_prompts = False

    def victim(self, waiting: Waiting) -> int:
        """See :class:`EvictionRule`."""
        others = [queue for queue in _UNPROTECTED_QUEUES if waiting.heads[queue] != EMPTY]
        return oldest(waiting.joined, others or RETURNING_QUEUES)

    def num_overflowing(self, lengths: Sequence[int], room: int) -> int:
        """See :class:`EvictionRule`: so many as are beyond their share."""
        return num_overflowing(sum(lengths[queue] for queue in RETURNING_QUEUES), room)
