# SPDX-License-Identifier: Apache-2.0
"""Which boundaries of a request have their tail stored: arithmetic on ints only.

A tail has the bytes of about eight units (DeepSeek-V4-Flash), so few are stored, by the rules of
the local cache: a tail that makes hits longer by fewer tokens than its memory has rows for is
marginal, and gives way to rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from vllm_ascend.core.policy.boundaries import (
    BoundaryRules,
    PromptBoundaries,
    align_down,
    is_worth_a_tail,
)
from vllm_ascend.core.policy.ranks import SPARE_SPACING

# A spare tail at every fourth, 16th and 64th boundary, the last of them given up last.
_SPARE_SPACING = tuple(spacing for spacing in SPARE_SPACING.values() if spacing > 1)
MARGINAL = len(_SPARE_SPACING)
"""The rank of tails close behind a kept one; spare tails have lower ones."""
FAR_APART = MARGINAL - 1
"""The rank of the spare tails that are furthest apart."""
KEPT = MARGINAL + 1
"""The rank of what is kept. The lowest rank is given up first."""


@dataclass(frozen=True)
class TailChoice(BoundaryRules):
    """Chooses what is stored beside the tails that are kept."""

    def rolling(self, start: int, end: int, prompt: PromptBoundaries) -> tuple[int, int]:
        """Return (rank, boundary) of the last one in ``(start, end]``; 0: none.

        The next turn repeats the answer, and goes on there if the request ends now. Its tail takes
        the place of the one before.
        """
        boundary = align_down(end, self.alignment)
        if boundary <= start:
            return KEPT, 0
        is_kept = is_worth_a_tail(boundary, prompt.ends, self.least_gain_tokens)
        return KEPT if is_kept else MARGINAL, boundary

    def spare(self, start: int, end: int, others: Collection[int]) -> list[tuple[int, int]]:
        """Return (rank, boundary) of the spare tails in ``(start, end]``, the highest rank first.

        Others may leave a prompt anywhere, and go on there at once: worth a tail while memory is
        idle.

        Args:
            others: Boundaries whose tails are stored anyway.
        """
        step = _SPARE_SPACING[0] * self.alignment
        boundaries = range(align_down(start, step) + step, end + 1, step)
        return sorted(
            ((self._spare_rank(b), b) for b in boundaries if b not in others), reverse=True
        )

    def _spare_rank(self, boundary: int) -> int:
        ordinal = boundary // self.alignment
        return max(r for r, spacing in enumerate(_SPARE_SPACING) if not ordinal % spacing)
