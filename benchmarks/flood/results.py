# SPDX-License-Identifier: Apache-2.0
"""What was measured of a flood."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """What was flooded, and with what.

    Attributes:
        variant: Name of the variant.
        prompt_tokens: Of each prompt of the flood.
    """

    variant: str
    block_size: int
    kv_gib: float
    prompt_tokens: int


@dataclass(frozen=True)
class Flood(Cell):
    """One client's prompts against what was cached before.

    Attributes:
        num_blocks: Of the pool.
        points: (tokens of the flood so far, hit rate of normal traffic in percent).
    """

    num_blocks: int
    points: list[tuple[int, float]]

    @property
    def before(self) -> float:
        """The hit rate without a flood."""
        return self.points[0][1]

    def tokens_until(self, share: float) -> int | None:
        """Return the tokens with which not more than a share of the hit rate is left."""
        left = (tokens for tokens, rate in self.points if rate <= share * self.before)
        return next(left, None) if self.before else None


@dataclass(frozen=True)
class Mixture(Cell):
    """Normal traffic that goes on among a client's prompts.

    Attributes:
        between: Prompts of the flood between two requests of normal traffic.
        hit_rate: What normal traffic hits, in percent.
    """

    between: int
    hit_rate: float
