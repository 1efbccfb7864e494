# SPDX-License-Identifier: Apache-2.0
"""What is known of a block when it is used: from that is learned how likely it is used again.

Kept blocks wait in one queue per class. A hit takes a tail at its end and all rows before it. So a
prompt is cut into classes where it left the cache, and nowhere else: the tail of that boundary is
kept. If the end of a prompt were given up and the rest had no tail, nobody could hit the rest.

Example: a prompt of 40 blocks, 10 of which were in the cache; another 5 had come before, and were
given up. 15 of 40 are no return: 10 blocks are of class HIT, 30 of NEW, or of LONG if the prompts
before had 26 on average or less. Had 30 come before, they would be RETURNING_HIT and RETURNING.
"""

from __future__ import annotations

from enum import IntEnum

RETURNING_PERCENT = 75  # of a prompt
# A prompt is long that has so many times the mean of the last ones, about a hundred of them.
_LONG = 1.5
_FADING = 0.99


class BlockClass(IntEnum):
    """Which queue a block waits in.

    In this order they go if they promise the same; of one prompt, what is deeper comes first.
    """

    LONG = 0
    """Of a prompt that is long beside others, behind what it hit."""
    NEW = 1
    """Of another prompt, behind what it hit."""
    HIT = 2
    """What these prompts hit."""
    RETURNING = 3
    """Of a prompt most of which had come before, behind what it hit."""
    RETURNING_HIT = 4
    """What such prompts hit."""
    OVERFLOW = 5
    """Of RETURNING what was one too many: it is protected no more."""
    OVERFLOW_HIT = 6
    """The same of RETURNING_HIT."""

    @property
    def hit(self) -> BlockClass:
        """The class of what a prompt hit, by that of the rest of it."""
        returns = self in (BlockClass.RETURNING, BlockClass.RETURNING_HIT)
        return BlockClass.RETURNING_HIT if returns else BlockClass.HIT


NUM_QUEUES = len(BlockClass)


class PromptLengths:
    """Tells which prompts are long beside those before them."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def is_long(self, length: int) -> bool:
        """Say whether a prompt is long, and take it into account for the next one."""
        is_long = length * self._weight > _LONG * self._sum
        self._sum = _FADING * self._sum + length
        self._weight = _FADING * self._weight + 1
        return is_long


def is_returning(seen_tokens: int, prompt_tokens: int) -> bool:
    """Say whether a prompt has come before, by how much of it has."""
    return 100 * seen_tokens >= RETURNING_PERCENT * prompt_tokens


def is_mostly_hit(start: int, end: int, hit_tokens: int) -> bool:
    """Say whether most of what a block holds, ``[start, end)`` of a prompt, was a hit.

    One block of the 128:1 group holds a whole chat. It is not worth more than the rest of the chat
    because of the few tokens that all chats begin with: each has a copy of those.
    """
    return hit_tokens - start > end - hit_tokens


def queues_of(num_blocks: int, num_hit: int, rest: BlockClass) -> list[int]:
    """Return the queues of a prompt's blocks, of which the first ``num_hit`` were hit.

    Args:
        num_blocks: All of them.
        num_hit: May be more than that.
        rest: The class of the others.
    """
    num_hit = min(num_hit, num_blocks)
    return [int(rest.hit)] * num_hit + [int(rest)] * (num_blocks - num_hit)
