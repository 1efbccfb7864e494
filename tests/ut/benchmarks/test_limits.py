# SPDX-License-Identifier: Apache-2.0
"""A ratio fails only if all repeats agree, and whatever was within its limit is left alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.microscope.cases import ALL_CASES, Case
from benchmarks.microscope.limits import LIMITS, REPEATS, Limit, Verdict, check
from benchmarks.microscope.sides import SIDES

FREE, LOOK_UP = Case("free", 8192), Case("look_up_full", 8192)


class Scripted:
    """Measures what it was told to: of each case, the ratios of the repeats to come."""

    def __init__(self, **ratios: list[float]) -> None:
        self._ratios: dict[str, Iterator[float]] = {k: iter(v) for k, v in ratios.items()}
        self.asked: list[list[str]] = []

    def __call__(self, sides, cases):
        base, side = sides
        self.asked.append([case.operation for case in cases])
        return {
            base: {case.name: {"ms": 2.0} for case in cases},
            side: {case.name: {"ms": 2.0 * next(self._ratios[case.operation])} for case in cases},
        }


def limit(case: Case, at_most: float = 1.15) -> Limit:
    return Limit(case, "unset", "stock", at_most, "why")


@pytest.mark.parametrize(
    ("ratios", "measured", "is_kept"),
    [
        ([1.0], 1, True),
        ([1.15], 1, True),
        ([1.2, 1.1], 2, True),
        ([1.2, 9.0, 1.1], 3, True),
        ([1.2, 9.0, 1.2, 1.2, 1.15], 5, True),
        ([1.2] * 5, 5, False),
    ],
)
def test_only_repeats_that_all_agree_fail(ratios, measured, is_kept) -> None:
    (verdict,) = check([limit(FREE)], Scripted(free=ratios))
    assert verdict == Verdict(limit(FREE), tuple(ratios[:measured]))
    assert verdict.is_kept is is_kept


def test_only_what_is_above_its_limit_is_measured_again() -> None:
    measure = Scripted(free=[1.0], look_up_full=[2.0] * REPEATS)
    verdicts = check([limit(FREE), limit(LOOK_UP)], measure)
    assert [verdict.is_kept for verdict in verdicts] == [True, False]
    assert measure.asked == [["free", "look_up_full"], *[["look_up_full"]] * (REPEATS - 1)]
    assert len(verdicts[1].ratios) == REPEATS


def test_every_limit_names_a_case_and_two_sides() -> None:
    assert len({(limit.case, limit.side) for limit in LIMITS}) == len(LIMITS)
    for limit_ in LIMITS:
        assert limit_.case in ALL_CASES
        assert SIDES[limit_.side].base == SIDES[limit_.base].key
        assert limit_.why
