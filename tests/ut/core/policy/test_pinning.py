# SPDX-License-Identifier: Apache-2.0
"""Which moves of a window pin the one just left: against a walk token by token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend.core.policy.pinning import check_pinning, dropped_blocks, leaves_by_chunk

tokens = st.integers(0, 200)
sizes = st.integers(1, 40)


def blocks_read(num_tokens: int, window: int, block_tokens: int) -> set[int]:
    """The blocks of the tokens that the next token attends to, itself included."""
    read = range(max(num_tokens + 1 - window, 0), num_tokens + 1)
    return {token // block_tokens for token in read}


@given(tokens, tokens, sizes, sizes)
def test_dropped_is_what_no_later_window_reads(start, step, window, block_tokens):
    end = start + step
    dropped = dropped_blocks(start, end, window_tokens=window, block_tokens=block_tokens)
    before = {b for t in range(start + 1) for b in blocks_read(t, window, block_tokens)}
    held_at_start = {b for b in before if b >= min(blocks_read(start, window, block_tokens))}
    passed = {b for t in range(start, end + 1) for b in blocks_read(t, window, block_tokens)}
    first_read = min(blocks_read(end, window, block_tokens))
    assert set(dropped) == {b for b in held_at_start | passed if b < first_read}


@given(tokens, tokens, tokens, sizes, sizes)
def test_a_way_in_pieces_drops_what_the_whole_way_drops(start, a, b, window, block_tokens):
    size = {"window_tokens": window, "block_tokens": block_tokens}
    there, onward = (
        dropped_blocks(start, start + a, **size),
        dropped_blocks(start + a, start + a + b, **size),
    )
    assert [*there, *onward] == list(dropped_blocks(start, start + a + b, **size))


@given(tokens, tokens, st.lists(st.tuples(sizes, sizes), min_size=1, max_size=3), sizes)
def test_every_group_has_to_drop_enough(start, step, windows, least):
    end = start + step
    drops = [
        len(dropped_blocks(start, end, window_tokens=window, block_tokens=block))
        for window, block in windows
    ]
    pinned = leaves_by_chunk(start, end, windows, min_drop_blocks=least)
    assert pinned == (min(drops) >= least)


@pytest.mark.parametrize(
    ("start", "end", "least", "pinned"),
    [
        (8192, 16_384, 16, True),  # the next chunk of a prompt
        (28_672, 28_672 + 256, 16, True),  # 256 tokens behind a hit
        (28_672, 28_672 + 240, 16, False),
        (29_184, 29_200, 16, False),  # a block's worth of decoding
        (29_184, 29_200, 1, True),
        (0, 1023, 1, False),  # still inside the first window
        (0, 8192, 1, True),
        (29_184, 29_185, 0, False),  # nothing dropped, nothing left
    ],
)
def test_gemma_pins_chunks_and_not_decoding(start, end, least, pinned):
    assert leaves_by_chunk(start, end, [(1024, 16)] * 6, min_drop_blocks=least) is pinned


def test_a_model_without_windows_is_refused():
    with pytest.raises(ValueError, match="VLLM_PIN_SWA_TOKENS='1' has no effect on this model"):
        check_pinning(pin_swa_tokens=True, has_windowed_group=False)
    check_pinning(pin_swa_tokens=True, has_windowed_group=True)
    check_pinning(pin_swa_tokens=False, has_windowed_group=False)
