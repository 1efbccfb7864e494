# SPDX-License-Identifier: Apache-2.0
"""Which blocks may serve a hit: tables, and brute force at small sizes."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ascend.core.policy.tail_blocks import reachable_blocks, tail_ordinals, without_holes
from vllm_ascend.core.retention.sparse_state import spread


def mask(text: str) -> list[bool]:
    return [flag == "1" for flag in text]


@pytest.mark.parametrize(
    ("boundaries", "tail_length", "expected"),
    [
        ([256, 512], 1, [7, 15]),  # blocks of 32: one each
        ([256, 512], 4, [4, 5, 6, 7, 12, 13, 14, 15]),
        ([256, 320], 4, [4, 5, 6, 7, 8, 9]),  # they overlap
        ([128, 256, 384], 4, list(range(12))),  # they touch
        ([256, 288, 512], 4, [4, 5, 6, 7, 8, 12, 13, 14, 15]),
        ([64], 4, [0, 1]),  # no tail reaches over the first token
        ([], 4, []),
        ([256, 512], 0, []),  # compressor state that is not read at its window's end
    ],
)
def test_tails_by_ordinal(boundaries, tail_length, expected):
    def tail(boundary: int) -> range:
        return range(max(boundary // 32 - tail_length, 0), boundary // 32)

    found = tail_ordinals(boundaries, tail, block_tokens=32, tail_length=tail_length)
    assert list(found) == expected


def test_tails_of_varying_length():
    tails = {10: range(2, 5), 20: range(4, 10), 40: range(19, 20)}
    found = tail_ordinals([10, 20, 40], tails.__getitem__, block_tokens=2, tail_length=None)
    assert list(found) == [2, 3, 4, 5, 6, 7, 8, 9, 19]


def test_a_boundary_with_a_hole_in_its_tail_is_left_out():
    def tail(boundary: int) -> range:
        return range(boundary - 3, boundary)

    assert without_holes([3, 6, 9, 12], [5, 9], tail) == [3, 9]
    assert without_holes([3, 6], [], tail) == [3, 6]


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
    assert reachable_blocks(
        0,
        12,
        block_tokens=2,
        tail_length=num_tail_blocks,
        alignment=8,
        interval=interval,
        num_prompt_tokens=None if replay is None else replay + 1,
    ) == mask(expected)


def test_mask_is_none_when_tails_touch():
    assert (
        reachable_blocks(
            0,
            12,
            block_tokens=2,
            tail_length=4,
            alignment=8,
            interval=None,
            num_prompt_tokens=None,
        )
        is None
    )


def test_peeked_block_lies_behind_the_boundary():
    kept = reachable_blocks(
        0,
        12,
        block_tokens=2,
        tail_length=2,
        alignment=8,
        interval=None,
        num_prompt_tokens=None,
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

    flags = reachable_blocks(
        start,
        start + length,
        block_tokens=block_tokens,
        tail_length=tail_size,
        alignment=alignment,
        interval=interval,
        num_prompt_tokens=None if replay is None else replay_tokens + 1,
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
        flags = reachable_blocks(
            start,
            end,
            block_tokens=2,
            tail_length=3,
            alignment=8,
            interval=0,
            num_prompt_tokens=replay * 8 + 1,
        )
        assert flags is not None
        return flags

    assert kept(0, cut) + kept(cut, 24) == kept(0, 24)
