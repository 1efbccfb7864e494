# SPDX-License-Identifier: Apache-2.0
"""Looks for an episode that fails, for tests of planted bugs."""

from __future__ import annotations

from collections.abc import Iterable

from tests.soak import episode

_MAX_STEPS = 5000


def hunt(seed: int, numbers: Iterable[int]) -> episode.Result:
    """Run these episodes of a seed, which have no end, until one fails."""
    steps = 0
    for number in numbers:
        result = episode.run(seed, number)
        if result.failure is not None:
            return result
        steps += result.counts["steps"]
        assert steps < _MAX_STEPS, f"nothing was found in {steps} steps"
    raise AssertionError
