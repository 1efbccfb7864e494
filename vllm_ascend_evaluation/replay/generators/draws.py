# SPDX-License-Identifier: Apache-2.0
"""The distributions that the models draw from."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np


@dataclass(frozen=True)
class LogNormal:
    """Positive numbers whose logarithm is normal, as lengths and waiting times are.

    Attributes:
        median: Half of the draws are below it.
        sigma: Standard deviation of the natural logarithm.
        minimum: Added to every draw.
        maximum: Draws above it become it.
    """

    median: float
    sigma: float
    minimum: float = 0.0
    maximum: float = float("inf")

    def draw(self, rng: np.random.Generator) -> float:
        """Return a number from ``minimum`` to ``maximum``."""
        return min(self.minimum + rng.lognormal(log(self.median), self.sigma), self.maximum)


@dataclass(frozen=True)
class Mixture:
    """One of two log-normal distributions, chosen anew for every draw.

    Attributes:
        often: The usual one.
        seldom: The other one.
        share: How many of the draws are from ``seldom``, 0 to 1.
    """

    often: LogNormal
    seldom: LogNormal
    share: float

    def draw(self, rng: np.random.Generator) -> float:
        """Return a number."""
        return (self.seldom if rng.random() < self.share else self.often).draw(rng)


def tokens(rng: np.random.Generator, lengths: LogNormal | Mixture) -> int:
    """Return a number of tokens, at least one."""
    return max(1, round(lengths.draw(rng)))


class Zipf:
    """Ranks 0 to ``count - 1``, of which rank r is drawn in proportion to ``1 / (r + 1)``."""

    def __init__(self, count: int) -> None:
        weights = 1.0 / np.arange(1, count + 1)
        self._cumulative = np.cumsum(weights / weights.sum())

    def draw(self, rng: np.random.Generator) -> int:
        """Return a rank."""
        rank = int(np.searchsorted(self._cumulative, rng.random()))
        return min(rank, len(self._cumulative) - 1)
