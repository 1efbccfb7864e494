# SPDX-License-Identifier: Apache-2.0
"""The policy functions, by tables and against brute force over small sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend.core.policy.boundaries import (
    BoundaryRules,
    align_down,
    contiguous_blocks_for_hit,
    fallback_boundary,
    is_worth_a_tail,
    kept_boundaries,
    replay_boundary,
    resolve_retention_interval,
    tail_blocks,
)

UNIT = 128


def test_contiguous_blocks_count_the_window_without_the_new_token():
    assert contiguous_blocks_for_hit(128, 128, peek_block=False) == 1
    assert contiguous_blocks_for_hit(128, 32, peek_block=False) == 4
    assert contiguous_blocks_for_hit(8, 8, peek_block=False) == 1
    assert contiguous_blocks_for_hit(1, 16, peek_block=False) == 0
    assert contiguous_blocks_for_hit(128, 32, peek_block=True) == 5


def test_tail_of_a_boundary():
    # Window 128: tokens [8192 - 127, 8192) are read.
    assert tail_blocks(8192, 8192 - 127, 32) == range(252, 256)
    assert tail_blocks(128, 0, 128) == range(1)
    # Nothing is read: the window's state is closed at the boundary.
    assert list(tail_blocks(128, 128, 32)) == []


def test_replay_boundary_leaves_the_last_token_to_compute():
    assert replay_boundary(10_000, 4096, 1) == 8192
    assert replay_boundary(8192, 4096, 1) == 4096
    assert replay_boundary(8193, 4096, 1) == 8192
    assert replay_boundary(4096, 4096, 1) == 0
    assert replay_boundary(1, 4096, 1) == 0


def test_replay_boundary_with_a_draft_layer_leaves_a_granule():
    assert replay_boundary(8199, 4096, 8) == 4096
    assert replay_boundary(8200, 4096, 8) == 8192
    assert replay_boundary(3, 4096, 8) == 0


def test_finish_boundary_is_where_the_next_turn_resumes():
    assert BoundaryRules(128).finish(1000) == 896
    assert BoundaryRules(128).finish(1024) == 1024
    assert BoundaryRules(128, lookahead=128).finish(1024) == 896
    assert BoundaryRules(128, lookahead=128).finish(100) == 0


def test_fallback_boundary_lies_shortly_before_the_replay_boundary():
    assert fallback_boundary(13_952, 128, 0) == 13_824
    assert fallback_boundary(1024, 128, 0) == 512
    assert fallback_boundary(512, 128, 0) == 0
    assert fallback_boundary(0, 128, 0) == 0
    # A request that leaves at 13,824 can hit 13,696 if a draft layer looks a granule ahead.
    assert fallback_boundary(13_824, 128, 128) == 13_696
    assert fallback_boundary(128, 128, 128) == 0


def test_a_tail_is_worth_it_where_hits_get_longer_by_so_much():
    assert is_worth_a_tail(13_952, [13_824], 128)
    assert not is_worth_a_tail(13_952, [13_824], 129)
    assert not is_worth_a_tail(13_952, [512, 13_824, 32_768], 1489)


def test_a_tail_is_worth_it_if_no_other_is_kept_before_it():
    assert is_worth_a_tail(128, [], 1489)
    assert is_worth_a_tail(128, [0, 128, 256], 1489), "0 is none"


@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from([None, 0, 4, 8, 12]),
    st.sets(st.integers(0, 20).map(lambda n: 4 * n)),
)
def test_kept_boundaries_against_a_scan(start, length, interval, singled_out):
    end = start + length
    expected = [
        b
        for b in range(start + 1, end + 1)
        if b % 4 == 0 and (b in singled_out or interval is None or (interval and b % interval == 0))
    ]
    assert expected == kept_boundaries(
        start, end, alignment=4, interval=interval, singled_out=singled_out
    )


def test_align_down():
    assert align_down(0, 128) == 0
    assert align_down(127, 128) == 0
    assert align_down(300, 128) == 256


def test_interval_resolution():
    assert resolve_retention_interval(None, 128, has_windowed_group=False) is None
    assert resolve_retention_interval(0, 128, has_windowed_group=True) == 0
    assert resolve_retention_interval("auto", 16_384, has_windowed_group=True) == 32_768
    assert resolve_retention_interval("auto", 48, has_windowed_group=True) == 32_784
    assert resolve_retention_interval(4096, 4096, has_windowed_group=True) == 4096


@pytest.mark.parametrize("interval", [100, -128])
def test_interval_must_fit_the_alignment(interval):
    with pytest.raises(ValueError, match=rf"RETENTION_INTERVAL={interval} .* multiples of 128"):
        resolve_retention_interval(interval, 128, has_windowed_group=True)


def test_retention_needs_a_windowed_group():
    with pytest.raises(ValueError, match="no sliding-window KV cache group"):
        resolve_retention_interval(0, 128, has_windowed_group=False)


def test_without_a_fallback_boundary_nothing_is_marginal():
    rules = BoundaryRules(UNIT, least_gain_tokens=1061, keeps_fallback=False)
    prompt = rules.of_prompt(14_000, junction=9088)
    assert (prompt.ends, prompt.kept) == ({13_952}, {13_952, 9088})
    assert not prompt.marginal


def test_the_interval_keeps_an_end_that_is_not_worth_a_tail():
    rules = BoundaryRules(UNIT, least_gain_tokens=1061, interval=8 * UNIT)
    prompt = rules.of_prompt(24 * UNIT + 1, junction=0)
    assert prompt.ends - prompt.kept == {24 * UNIT}
    assert not prompt.marginal
    assert rules.kept(23 * UNIT, 24 * UNIT, prompt.kept) == [24 * UNIT]


@given(
    st.integers(0, 100_000),
    st.integers(0, 700),
    st.sampled_from([0, UNIT]),
    st.integers(0, 4096),
    st.sampled_from([None, 0, UNIT, 16 * UNIT]),
    st.booleans(),
)
def test_every_boundary_is_kept_marginal_or_one_of_the_interval(
    num_tokens, junction, lookahead, least_gain_tokens, interval, keeps_fallback
):
    rules = BoundaryRules(UNIT, lookahead, least_gain_tokens, interval, keeps_fallback)
    prompt = rules.of_prompt(num_tokens, junction * UNIT)
    kept = set(rules.kept(0, 200_000, prompt.kept))
    assert prompt.singled_out - {0} == (prompt.singled_out & kept) | prompt.marginal
    assert prompt.marginal.isdisjoint(kept)
    assert prompt.singled_out == prompt.ends | {junction * UNIT}
    assert all(b + max(lookahead, 1) <= num_tokens for b in prompt.ends if b)
    assert rules.of_prompt(*prompt[:2]) == prompt
