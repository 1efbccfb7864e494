# SPDX-License-Identifier: Apache-2.0
"""Which boundaries of a request have their tail stored: arithmetic on ints only.

A tail has the bytes of about eight units (DeepSeek-V4-Flash), so few are stored, by the rules of
the local cache: a tail that makes hits longer by fewer tokens than its memory has rows for is
marginal, and gives way to rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from vllm_ascend.core.policy.boundaries import (
    AUTO_RETENTION_INTERVAL_TOKENS,
    align_down,
    fallback_boundary,
    is_worth_a_tail,
    kept_boundaries,
    replay_boundary,
)
from vllm_ascend.core.policy.ranks import SPARE_SPACING

# A spare tail at every fourth, 16th and 64th boundary, the last of them given up last.
_SPARE_SPACING = tuple(spacing for spacing in SPARE_SPACING.values() if spacing > 1)
MARGINAL = len(_SPARE_SPACING)
"""The rank of tails close behind a kept one; spare tails have lower ones."""
KEPT = MARGINAL + 1
"""The rank of what is kept. The lowest rank is given up first."""


class PromptBoundaries(NamedTuple):
    """Where a prompt is left or gone on with.

    Attributes:
        ends: ``replay`` and ``fallback``, see :meth:`TailChoice.of_prompt`.
        kept: Those of them whose tails are kept, and the junction.
        marginal: The others, but for multiples of the interval.
    """

    ends: frozenset[int]
    kept: frozenset[int]
    marginal: frozenset[int]


@dataclass(frozen=True)
class TailChoice:
    """Chooses boundaries, multiples of ``unit`` tokens.

    Attributes:
        unit: Tokens between boundaries.
        lookahead: Draft layers need so many tokens behind a boundary, others 0.
        least_gain: So many tokens' rows take the memory of a tail.
        interval: A tail every so many tokens, beside those of single boundaries.
    """

    unit: int
    lookahead: int = 0
    least_gain: int = 0
    interval: int = AUTO_RETENTION_INTERVAL_TOKENS

    @property
    def _spacing(self) -> int:
        """The interval in force: a multiple of the unit."""
        return align_down(self.interval, self.unit) or self.unit

    def of_prompt(self, num_prompt_tokens: int, junction: int) -> PromptBoundaries:
        """Return the boundaries that a prompt singles out.

        ==========  ====================================================================
        fallback    shortly before the prompt's end, where the next turn may leave it
        replay      where the same prompt, sent again, goes on; may be marginal
        junction    where a request was seen to leave a stored prefix; 0: nowhere
        ==========  ====================================================================
        """
        replay = replay_boundary(num_prompt_tokens, self.unit, max(self.lookahead, 1))
        ends = frozenset({replay, fallback_boundary(replay, self.unit, self.lookahead)})
        worth = {b for b in ends if is_worth_a_tail(b, ends, self.least_gain)} | {junction}
        marginal = frozenset(b for b in ends - worth if b % self._spacing)
        return PromptBoundaries(ends, frozenset(worth), marginal)

    def kept(self, start: int, end: int, prompt: PromptBoundaries) -> list[int]:
        """Return the boundaries in ``(start, end]`` whose tails are kept, ascending: a prompt's,
        and the multiples of the interval.
        """
        return kept_boundaries(
            start,
            end,
            alignment=self.unit,
            interval=self._spacing,
            singled_out=prompt.kept,
        )

    def rolling(self, start: int, end: int, prompt: PromptBoundaries) -> tuple[int, int]:
        """Return (rank, boundary) of the last one in ``(start, end]``; 0: none.

        The next turn repeats the answer, and goes on there if the request ends now. Its tail takes
        the place of the one before.
        """
        boundary = align_down(end, self.unit)
        if boundary <= start:
            return KEPT, 0
        is_kept = is_worth_a_tail(boundary, prompt.ends, self.least_gain)
        return KEPT if is_kept else MARGINAL, boundary

    def spare(self, start: int, end: int, others: Collection[int]) -> list[tuple[int, int]]:
        """Return (rank, boundary) of the spare tails in ``(start, end]``, the highest rank first.

        Others may leave a prompt anywhere, and go on there at once: worth a tail while memory is
        idle.

        Args:
            others: Boundaries whose tails are stored anyway.
        """
        step = _SPARE_SPACING[0] * self.unit
        boundaries = range(align_down(start, step) + step, end + 1, step)
        return sorted(
            ((self._spare_rank(b), b) for b in boundaries if b not in others), reverse=True
        )

    def _spare_rank(self, boundary: int) -> int:
        ordinal = boundary // self.unit
        return max(r for r, spacing in enumerate(_SPARE_SPACING) if not ordinal % spacing)
