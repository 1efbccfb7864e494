# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from vllm_ascend.npu_check.answers import (
    Answer,
    Difference,
    first_difference,
    largest_score_difference,
    num_recalled,
)


def answer(*scored: tuple[int, dict[int, float]]) -> Answer:
    return Answer([token for token, _ in scored], [scores for _, scores in scored], 0)


ALONE = answer((7, {7: -0.1, 8: -3.0}), (9, {9: -0.7, 4: -0.9}))


def test_answers_that_are_alike_have_no_difference():
    assert first_difference(ALONE, ALONE) is None
    assert largest_score_difference(ALONE, ALONE) == 0


def test_the_gap_is_by_the_first_answers_scores():
    other = answer((7, {7: -0.2}), (4, {4: -0.1, 9: -5.0}))
    assert first_difference(ALONE, other) == Difference(1, pytest.approx(0.2))


def test_an_unlikely_token_is_at_least_as_far_as_the_least_likely_that_is_told():
    other = answer((5, {5: 0.0}), (9, {9: 0.0}))
    assert first_difference(ALONE, other) == Difference(0, pytest.approx(2.9))


def test_scores_are_compared_until_answers_part():
    other = answer((7, {7: -0.4}), (4, {4: -0.1}))
    assert largest_score_difference(ALONE, other) == pytest.approx(0.3)
    assert largest_score_difference(ALONE, answer((1, {1: 0.0}), (9, {9: 0.0}))) == 0


@pytest.mark.parametrize(("expected", "count"), [((7, 9), 2), ((7, 8), 1), ((8, 9), 0)])
def test_recalled_tokens_are_counted_up_to_the_first_other(expected, count):
    assert num_recalled(ALONE, expected) == count
