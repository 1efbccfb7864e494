# SPDX-License-Identifier: Apache-2.0
"""Which boundaries of a request have their tail stored: arithmetic on ints only.

A tail has the bytes of about eight units (DeepSeek-V4-Flash), so few are stored: those that the
local cache keeps as well, and the boundary at which the next turn goes on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from vllm_ascend.core.policy.boundaries import (
    AUTO_RETENTION_INTERVAL_TOKENS,
    align_down,
    fallback_boundary,
    kept_boundaries,
    replay_boundary,
)
from vllm_ascend.core.policy.ranks import SPARE_SPACING

# A spare tail at every fourth, 16th and 64th boundary, the last of them given up last.
_SPARE_SPACING = tuple(spacing for spacing in SPARE_SPACING.values() if spacing > 1)
KEPT = len(_SPARE_SPACING)
"""The rank of what is kept; spare tails have lower ones, the lowest is given up first."""


@dataclass(frozen=True)
class TailChoice:
    """Chooses boundaries, multiples of ``unit`` tokens.

    Attributes:
        unit: Tokens between boundaries.
        lookahead: Draft layers need so many tokens behind a boundary, others 0.
        interval: A tail every so many tokens, beside those of single boundaries.
    """

    unit: int
    lookahead: int = 0
    interval: int = AUTO_RETENTION_INTERVAL_TOKENS

    def kept(self, start: int, end: int, num_prompt_tokens: int, junction: int) -> list[int]:
        """Return the boundaries in ``(start, end]`` of a prompt whose tails are stored, ascending.

        ===============  ======================================================
        replay boundary  where the same prompt, sent again, goes on
        junction         where a request was seen to leave a stored prefix; 0: nowhere
        interval         its multiples
        ===============  ======================================================
        """
        return kept_boundaries(
            start,
            end,
            alignment=self.unit,
            interval=align_down(self.interval, self.unit) or self.unit,
            singled_out=(self._replay(num_prompt_tokens), junction),
        )

    def _replay(self, num_prompt_tokens: int) -> int:
        return replay_boundary(num_prompt_tokens, self.unit, max(self.lookahead, 1))

    def rolling(self, start: int, end: int, num_prompt_tokens: int) -> int:
        """Return the last boundary in ``(start, end]`` of an answer; 0: there is none.

        The next turn repeats the answer, and goes on there if the request ends now. Its tail takes
        the place of the one before.
        """
        boundary = align_down(end, self.unit)
        return boundary if boundary > max(start, num_prompt_tokens) else 0

    def spare(
        self, start: int, end: int, num_prompt_tokens: int, kept: Collection[int]
    ) -> list[tuple[int, int]]:
        """Return (rank, boundary) of the spare tails in ``(start, end]``, the highest rank first.

        Others may leave a prompt anywhere, and go on there at once: worth a tail while memory is
        idle. First comes the one shortly before the replay boundary, for a turn that repeats all
        but the prompt's end: it saves fewer tokens than its memory has rows for.
        """
        replay = self._replay(num_prompt_tokens)
        fallback = fallback_boundary(replay, self.unit, self.lookahead)
        step = _SPARE_SPACING[0] * self.unit
        boundaries = range(align_down(start, step) + step, end + 1, step)
        ranks = {boundary: self._spare_rank(boundary) for boundary in boundaries}
        if start < fallback <= end:
            ranks[fallback] = KEPT - 1
        return sorted(((r, b) for b, r in ranks.items() if b not in kept), reverse=True)

    def _spare_rank(self, boundary: int) -> int:
        ordinal = boundary // self.unit
        return max(r for r, spacing in enumerate(_SPARE_SPACING) if not ordinal % spacing)
