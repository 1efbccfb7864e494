# SPDX-License-Identifier: Apache-2.0
"""Samples are spread over requests and over steps, however many there turn out to be."""

import itertools

import pytest

from vllm_ascend_evaluation.replay.runs.sampling import SamplingPlan


def sampled(num_steps: int, num_requests: int, requests_at) -> tuple[list[int], int]:
    """Return the steps that are kept at the end, and how many samples were taken in all."""
    plan = SamplingPlan(num_requests)
    kept: list[int] = []
    num_taken = 0
    for step in range(1, num_steps + 1):
        if plan.is_due(step, requests_at(step)):
            kept = [earlier for earlier in kept if plan.keeps(earlier)] + [step]
            num_taken += 1
    return kept, num_taken


def test_a_short_run_is_seen_whole():
    assert sampled(16, 2, lambda step: 1 + step // 9)[0] == list(range(1, 17))


@pytest.mark.parametrize("num_steps", [101, 1000, 12_345, 100_000])
def test_a_long_run_costs_little_and_has_no_gap(num_steps):
    kept, num_taken = sampled(num_steps, 1, lambda step: 1)
    assert 50 <= len(kept) <= 103
    assert num_taken < 1000
    gaps = [later - earlier for earlier, later in itertools.pairwise(kept)]
    assert max(gaps) <= num_steps // 25


def test_requests_that_come_all_at_once_are_seen():
    """All 300 requests in the first 300 of 50,000 steps: steps alone would show one of them."""
    kept, _ = sampled(50_000, 300, lambda step: min(step, 300))
    assert sum(step <= 300 for step in kept) >= 150
    assert sum(step > 300 for step in kept) >= 45
