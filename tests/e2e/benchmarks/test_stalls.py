# SPDX-License-Identifier: Apache-2.0
"""The slowest steps of long sessions beside most of them: that they are measured, not how fast."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest

from benchmarks.microscope.stalls import ALL_STALLS, REPEATS, Steps, measure, ratios_of, turns

UPSTREAM, BEST, TIER = ALL_STALLS


def test_turns_go_on_where_their_session_was():
    read = list(turns(30))
    by_session = sorted(read, key=lambda turn: turn.session)
    for _, session in groupby(by_session, lambda turn: turn.session):
        prompts = [turn.prompt_token_ids for turn in session]
        for before, after in pairwise(prompts):
            assert len(before) < len(after) and after[: len(before)] == before
    assert [turn.session for turn in turns(30)] == [turn.session for turn in read]


@pytest.mark.parametrize("stalls", [BEST, TIER], ids=["best", "tier"])
def test_every_step_of_a_run_is_timed(stalls, monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    steps = measure(stalls, num_turns=2)
    # Prompts of 100,000 tokens or more, and each token of the answers.
    assert len(steps.milliseconds) > 2 * 100_000 // 8192 + 64
    p50, p99 = steps.percentiles
    assert 0 < p50 < p99 and steps.ratio == p99 / p50


def test_a_limit_is_broken_only_if_all_repeats_agree():
    slow, fast = Steps([1.0] * 90 + [100.0] * 10, 0), Steps([1.0] * 100, 0)
    for runs, kept in (([fast], True), ([slow, fast], True), ([slow] * REPEATS, False)):
        given = iter(runs)
        measured = ratios_of(BEST, lambda stalls, given=given: next(given))
        assert measured == runs and not list(given)
        assert any(map(BEST.is_kept, measured)) is kept
    assert ratios_of(UPSTREAM, lambda stalls: slow) == [slow]
    assert not BEST.is_kept(Steps(fast.milliseconds, BEST.most_collections + 1))
