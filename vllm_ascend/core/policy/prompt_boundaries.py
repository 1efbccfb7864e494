# SPDX-License-Identifier: Apache-2.0
"""The boundaries that a prompt singles out, for the cache and the tier: arithmetic on ints only.

==========  ====================================================================
fallback    shortly before the prompt's end, where the next turn may leave it
replay      where the same prompt, sent again, goes on; may be marginal
junction    where a request was seen to leave a cached prefix
==========  ====================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from vllm_ascend.core.policy.boundaries import (
    AUTO_RETENTION_INTERVAL_TOKENS,
    fallback_boundary,
    finish_boundary,
    is_worth_a_tail,
    kept_boundaries,
    replay_boundary,
)


class PromptBoundaries(NamedTuple):
    """Where a prompt is left or gone on with, in tokens; a boundary of 0 is none.

    Attributes:
        num_prompt_tokens: The prompt's length.
        junction: Where a request was seen to leave a cached prefix.
        ends: The replay boundary, and the fallback boundary where it is kept as well.
        kept: Those of the ends that are worth a tail, and the junction.
        marginal: The other ends, but for multiples of the interval.
    """

    num_prompt_tokens: int
    junction: int
    ends: frozenset[int]
    kept: frozenset[int]
    marginal: frozenset[int]

    @property
    def singled_out(self) -> frozenset[int]:
        """All of them."""
        return self.ends | {self.junction}


@dataclass(frozen=True)
class BoundaryRules:
    """By what boundaries are singled out.

    Attributes:
        alignment: Tokens between boundaries.
        lookahead: Draft layers need so many tokens behind a boundary, others 0.
        least_gain: So many tokens' rows take the memory of a tail.
        interval: A tail every so many tokens, a multiple of the alignment; ``None``: at every
            boundary, 0: at those of prompts alone.
        keeps_fallback: A boundary shortly before the replay boundary is kept as well.
    """

    alignment: int
    lookahead: int = 0
    least_gain: int = 0
    interval: int | None = AUTO_RETENTION_INTERVAL_TOKENS
    keeps_fallback: bool = True

    def of_prompt(self, num_prompt_tokens: int, junction: int) -> PromptBoundaries:
        """Return the boundaries that a prompt of so many tokens singles out."""
        replay = replay_boundary(num_prompt_tokens, self.alignment, max(self.lookahead, 1))
        ends = {replay}
        if self.keeps_fallback:
            ends.add(fallback_boundary(replay, self.alignment, self.lookahead))
        kept = {b for b in ends if is_worth_a_tail(b, ends, self.least_gain)} | {junction}
        spacing = self.alignment if self.interval is None else self.interval
        marginal = {b for b in ends - kept if not spacing or b % spacing}
        sets = map(frozenset, (ends, kept, marginal))
        return PromptBoundaries(num_prompt_tokens, junction, *sets)

    def kept(self, start: int, end: int, singled_out: Iterable[int]) -> list[int]:
        """Return those singled out, and multiples of the interval, in ``(start, end]``; sorted."""
        return kept_boundaries(
            start, end, alignment=self.alignment, interval=self.interval, singled_out=singled_out
        )

    def finish(self, num_tokens: int) -> int:
        """Return the boundary where a request goes on that has so many tokens cached."""
        return finish_boundary(num_tokens, self.alignment, self.lookahead)
