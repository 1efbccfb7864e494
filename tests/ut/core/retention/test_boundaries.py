# SPDX-License-Identifier: Apache-2.0
"""The policy functions, by tables and against brute force over small sizes."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ascend.core.retention.boundaries import (
    align_down,
    contiguous_blocks_for_hit,
    fallback_boundary,
    finish_boundary,
    kept_boundaries,
    ordinals_of_ranges,
    replay_boundary,
    resolve_retention_interval,
    retained_block_mask,
    spread,
    tail_blocks,
)


def mask(text: str) -> list[bool]:
    return [flag == "1" for flag in text]


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
    assert finish_boundary(1000, 128, 0) == 896
    assert finish_boundary(1024, 128, 0) == 1024
    assert finish_boundary(1024, 128, 128) == 896
    assert finish_boundary(100, 128, 128) == 0


def test_fallback_boundary_lies_shortly_before_the_replay_boundary():
    assert fallback_boundary(13_952, 128, 0) == 13_824
    assert fallback_boundary(1024, 128, 0) == 512
    assert fallback_boundary(512, 128, 0) == 0
    assert fallback_boundary(0, 128, 0) == 0
    # A request that leaves at 13,824 can hit 13,696 if a draft layer looks a granule ahead.
    assert fallback_boundary(13_824, 128, 128) == 13_696
    assert fallback_boundary(128, 128, 128) == 0


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
        start, end, alignment_tokens=4, interval_tokens=interval, singled_out=singled_out
    )


@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), max_size=4),
)
def test_ordinals_of_ranges_against_a_scan(first, count, block_tokens, ranges):
    wanted = {token // block_tokens for start, end in ranges for token in range(start, end)}
    expected = [i for i in range(first, first + count) if i in wanted]
    assert ordinals_of_ranges(first, first + count, block_tokens, ranges) == expected


@given(st.integers(0, 40), st.integers(-3, 50))
def test_spread_takes_no_more_than_asked_and_the_last_one(length, count):
    items = list(range(length))
    chosen = spread(items, count)
    assert len(chosen) <= max(count, 0)
    assert list(chosen) == sorted(set(chosen))
    if length and count > 0:
        assert chosen[-1] == items[-1]
        gaps = {b - a for a, b in itertools.pairwise(chosen)}
        assert len(gaps) <= 1, "evenly"


# Blocks of 2 tokens, alignment 8 (4 blocks), tails of 1 or 2 blocks.
@pytest.mark.parametrize(
    ("interval", "replay", "num_tail_blocks", "expected"),
    [
        (None, None, 1, "000100010001"),
        (None, None, 2, "001100110011"),
        (0, 16, 2, "000000110000"),
        (0, 24, 2, "000000000011"),
        (0, 0, 2, "000000000000"),
        (16, 24, 1, "000000010001"),
        (16, 8, 2, "001100110000"),
    ],
)
def test_mask_table(interval, replay, num_tail_blocks, expected):
    assert retained_block_mask(
        0,
        12,
        block_tokens=2,
        num_tail_blocks=num_tail_blocks,
        alignment_tokens=8,
        interval_tokens=interval,
        replay_boundary_tokens=replay,
    ) == mask(expected)


def test_mask_is_none_when_tails_touch():
    assert (
        retained_block_mask(
            0,
            12,
            block_tokens=2,
            num_tail_blocks=4,
            alignment_tokens=8,
            interval_tokens=None,
            replay_boundary_tokens=None,
        )
        is None
    )


def test_peeked_block_lies_behind_the_boundary():
    kept = retained_block_mask(
        0,
        12,
        block_tokens=2,
        num_tail_blocks=2,
        alignment_tokens=8,
        interval_tokens=None,
        replay_boundary_tokens=None,
        peek_blocks=1,
    )
    assert kept == mask("000110011001")


@settings(max_examples=300, deadline=None)
@given(
    start=st.integers(0, 40),
    length=st.integers(0, 40),
    blocks_per_alignment=st.integers(1, 6),
    num_tail_blocks=st.integers(0, 6),
    interval_alignments=st.one_of(st.none(), st.integers(0, 4)),
    replay=st.one_of(st.none(), st.integers(0, 12)),
    peek=st.integers(0, 1),
)
def test_mask_equals_its_definition(
    start, length, blocks_per_alignment, num_tail_blocks, interval_alignments, replay, peek
):
    """A block is kept iff it lies in the tail of a kept boundary, wherever the range starts."""
    block_tokens = 4
    alignment = blocks_per_alignment * block_tokens
    interval = None if interval_alignments is None else interval_alignments * alignment
    replay_tokens = None if replay is None else replay * alignment
    spacing = alignment if interval is None else interval
    kept = set()
    if spacing:
        kept.update(range(spacing, (start + length + 20) * block_tokens, spacing))
    if interval is not None and replay_tokens:
        kept.add(replay_tokens)
    tail_size = num_tail_blocks + peek

    def is_kept(ordinal: int) -> bool:
        return any(
            boundary // block_tokens + peek - tail_size <= ordinal < boundary // block_tokens + peek
            for boundary in kept
        )

    flags = retained_block_mask(
        start,
        start + length,
        block_tokens=block_tokens,
        num_tail_blocks=tail_size,
        alignment_tokens=alignment,
        interval_tokens=interval,
        replay_boundary_tokens=replay_tokens,
        peek_blocks=peek,
    )
    if flags is None:
        # Only where a tail is at least as long as the way to the next boundary.
        assert spacing and tail_size >= spacing // block_tokens
    else:
        assert flags == [is_kept(ordinal) for ordinal in range(start, start + length)]


@given(cut=st.integers(0, 24), replay=st.integers(0, 6))
def test_chunking_does_not_change_what_is_kept(cut, replay):
    """The replay boundary may fall into an earlier or a later prefill chunk."""

    def kept(start: int, end: int) -> list[bool]:
        flags = retained_block_mask(
            start,
            end,
            block_tokens=2,
            num_tail_blocks=3,
            alignment_tokens=8,
            interval_tokens=0,
            replay_boundary_tokens=replay * 8,
        )
        assert flags is not None
        return flags

    assert kept(0, cut) + kept(cut, 24) == kept(0, 24)


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


def test_interval_must_fit_the_alignment():
    with pytest.raises(ValueError, match=r"RETENTION_INTERVAL=100 .* multiples of 128"):
        resolve_retention_interval(100, 128, has_windowed_group=True)


def test_retention_needs_a_windowed_group():
    with pytest.raises(ValueError, match="no sliding-window KV cache group"):
        resolve_retention_interval(0, 128, has_windowed_group=False)
