# SPDX-License-Identifier: Apache-2.0
"""Tails that a deeper hit has made unlikely to be hit: they are given up first.

A chat's turn leaves several tails: at its hit, where its prompt ends or shortly before, where its
answer ends. The next turn hits one of them, and whoever comes after that one goes on from what it
leaves. What lies behind it in the same prompt has done its duty::

    turn 1 leaves tails at  3,968  4,096  4,352
    turn 2 hits                           4,352    3,968 and 4,096 are spare from now on
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from vllm_ascend.core.layout.units import BlockId
from vllm_ascend.core.pool.free_queue import Rank
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.request_record import Tail, TailBlock

# A tail that was hit more often is where several prompts part: others will come for it.
_MOST_HITS = 1


# A tail takes the memory of so many tokens: three pages of C4 rows at block size 128.
_EXTRA_GAIN_TOKENS = 0


def extra_tails(
    boundaries: Iterable[int], *, sure: Set[int | None], interval: int | None
) -> set[int]:
    """Return the boundaries without which hits are only a little shorter, or hardly ever missed.

    Tails that are none lie some way behind each other::

        kept          3,968  4,096  4,352    the fallback boundary, the ends of prompt and answer
        extra                4,096  4,352    a hit at 3,968 is nearly as good

    Args:
        boundaries: Of the tails that a request keeps, in tokens.
        sure: Boundaries of which it is known that prompts part there.
        interval: Multiples of it are kept for prompts that part just anywhere, which is rare.
    """
    extra: set[int] = set()
    last = 0
    for boundary in sorted(boundaries):
        is_interval = bool(interval) and boundary % interval == 0
        if boundary not in sure and (is_interval or 0 < last > boundary - _EXTRA_GAIN_TOKENS):
            extra.add(boundary)
        else:
            last = boundary
    return extra


class SupersededTails:
    """Makes tails spare once one behind them, in the same prompt, was hit."""

    def __init__(self, pool: AscendBlockPool) -> None:
        self._pool = pool
        # By the id of a tail's first block: that block, the tails before this one, its hits.
        self._known: dict[BlockId, tuple[TailBlock, tuple[Tail, ...], int]] = {}

    def note_left(self, tails: Sequence[Tail], junction: int) -> None:
        """A request ends and leaves these tails; others are known to part at ``junction``."""
        ordered = sorted((t for t in tails if t.blocks), key=lambda tail: tail.boundary)
        before: list[Tail] = []
        for tail in ordered:
            self._note(tail, tuple(before), 0)
            if tail.boundary != junction:
                before.append(tail)

    def note_hit(self, tail: Tail) -> None:
        """A request goes on behind a tail: those before it are spare, if they are nobody else's."""
        if not tail.blocks:
            return
        before = self._note(tail, (), 1)
        needed = {entry.block.block_id for entry in tail.blocks}
        for earlier in before:
            if self._num_hits(earlier) <= _MOST_HITS:
                self._make_spare(earlier, needed)

    def _note(self, tail: Tail, before: tuple[Tail, ...], hits: int) -> tuple[Tail, ...]:
        """Add what is new of a tail; return all that is known to be before it."""
        first = tail.blocks[0]
        known = self._known.get(first.block.block_id)
        if known is not None and known[0].key == first.key:
            before, hits = before or known[1], hits + known[2]
        self._known[first.block.block_id] = (first, before, hits)
        return before

    def _num_hits(self, tail: Tail) -> int:
        first = tail.blocks[0]
        known = self._known.get(first.block.block_id)
        return known[2] if known is not None and known[0].key == first.key else 0

    def _make_spare(self, tail: Tail, needed: set[int]) -> None:
        for entry in tail.blocks:
            block = entry.block
            if entry.is_intact and block.block_id not in needed:
                if self._pool.rank(block) in (Rank.KEPT, Rank.PROTECTED):
                    self._pool.set_rank(block, Rank.SPARE)
