# SPDX-License-Identifier: Apache-2.0
"""Rules that say which kept block is given up next.

Blocks that nobody uses wait in queues, one per class of what they belong to; in each the least
recently used one is at the head. A rule picks the queue that gives up its head. It sees the times
of the heads and the lengths of the queues, and changes nothing.

Example: two queues whose heads were used last at 40 and 10, now 50. LRU picks the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

EMPTY = -1
"""The time of the head of an empty queue."""

RETURNING_PERCENT = 75  # of a prompt
PROTECTED_PERCENT = 50  # of the free memory


class BlockClass(NamedTuple):
    """What is known of a block when it is used.

    Attributes:
        returning: Most of the prompt had come before.
        reused: The block itself had.
    """

    returning: bool
    reused: bool

    @property
    def queue(self) -> int:
        """The queue of the class. Of one prompt, the part that is new (and deep) comes first."""
        return 2 * self.returning + self.reused


NUM_QUEUES = 4
RETURNING_QUEUES = tuple(BlockClass(True, reused).queue for reused in (False, True))
_OTHER_QUEUES = tuple(BlockClass(False, reused).queue for reused in (False, True))


def is_returning(seen_tokens: int, prompt_tokens: int) -> bool:
    """Say whether a prompt has come before, by how much of it has."""
    return 100 * seen_tokens >= RETURNING_PERCENT * prompt_tokens


def is_reused(start: int, end: int, seen_tokens: int) -> bool:
    """Say whether most of what a block holds, ``[start, end)`` of a prompt, had come before.

    One block of the 128:1 group holds a whole chat. It is not worth more than the rest of the chat
    because of the few tokens that all chats begin with: each has a copy of those.
    """
    return seen_tokens - start > end - seen_tokens


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
