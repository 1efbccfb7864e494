# SPDX-License-Identifier: Apache-2.0
"""Settings in pairs: few assignments in which every value of one meets every value of another."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Axes = Mapping[str, Sequence[Any]]
Assignment = dict[str, Any]
_Pair = tuple[str, Any, str, Any]
_CANDIDATES = 12


def pairs_of(assignment: Assignment) -> set[_Pair]:
    """Return the pairs of values that an assignment contains."""
    return {
        (one, assignment[one], other, assignment[other])
        for one, other in combinations(assignment, 2)
    }


def covering(axes: Axes, seed: int = 0) -> Iterator[Assignment]:
    """Yield assignments that contain every pair of values of two axes.

    Greedy: each starts from a pair that is still missing, and of a few ways to complete it the
    one with the most missing pairs is taken.
    """
    rng = random.Random(seed)
    missing = [
        (one, a, other, b)
        for one, other in combinations(axes, 2)
        for a in axes[one]
        for b in axes[other]
    ]
    rng.shuffle(missing)
    left = dict.fromkeys(missing)
    while left:
        one, a, other, b = next(iter(left))
        candidates = [
            {name: rng.choice(values) for name, values in axes.items()} | {one: a, other: b}
            for _ in range(_CANDIDATES)
        ]
        best = max(candidates, key=lambda candidate: sum(p in left for p in pairs_of(candidate)))
        for pair in pairs_of(best):
            left.pop(pair, None)
        yield best
