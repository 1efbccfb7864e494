# SPDX-License-Identifier: Apache-2.0
"""Tables and brute force for which rows a step touches."""

from __future__ import annotations

import pytest

from vllm_ascend_evaluation.oracle.reads import (
    chunked_rows_read,
    draft_rows_read,
    dspark_rows_read,
    full_rows_read,
    sliding_rows_read,
    state_rows_read,
    written_rows,
)


@pytest.mark.parametrize("ratio", [1, 3, 4, 128])
def test_a_row_is_written_with_its_last_token(ratio: int) -> None:
    for start in range(0, 300, 7):
        for end in range(start, 300, 11):
            expected = [i for i in range(300) if start <= (i + 1) * ratio - 1 < end]
            assert list(range(*written_rows(start, end, ratio=ratio))) == expected


def test_full_attention_reads_every_complete_row() -> None:
    assert full_rows_read(0, ratio=4) == (0, 0)
    assert full_rows_read(127, ratio=128) == (0, 0)
    assert full_rows_read(128, ratio=128) == (0, 1)
    assert full_rows_read(131, ratio=4) == (0, 32)


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [(0, 5, (0, 5)), (7, 8, (0, 8)), (8, 9, (1, 9)), (100, 132, (93, 132))],
)
def test_sliding_window(start: int, end: int, rows: tuple[int, int]) -> None:
    """Token t reads [t - window + 1, t]; window 8."""
    assert sliding_rows_read(start, end, window=8) == rows
    tokens = {row for token in range(start, end) for row in range(max(0, token - 7), token + 1)}
    assert tokens == set(range(*rows))


@pytest.mark.parametrize(
    ("start", "rows"), [(0, (0, 3)), (7, (0, 10)), (8, (8, 11)), (13, (8, 16))]
)
def test_chunked_local(start: int, rows: tuple[int, int]) -> None:
    assert chunked_rows_read(start, start + 3, chunk=8) == rows


@pytest.mark.parametrize(
    ("start", "c4", "c128"),
    [
        # start   overlapping windows of 4     windows of 128
        (0, (0, 0), (0, 0)),
        (3, (0, 3), (0, 3)),
        (4, (0, 4), (0, 4)),
        (6, (0, 6), (0, 6)),
        (128, (124, 128), (128, 128)),
        (132, (128, 132), (128, 132)),
        (134, (128, 134), (128, 134)),
        (255, (248, 255), (128, 255)),
        (256, (252, 256), (256, 256)),
    ],
)
def test_compressor_state(start: int, c4: tuple[int, int], c128: tuple[int, int]) -> None:
    """At a multiple of 128 the C128 compressor needs nothing, the C4 one four rows."""
    assert state_rows_read(start, ratio=4, overlapping=True) == c4
    assert state_rows_read(start, ratio=128, overlapping=False) == c128


def test_a_compressor_never_needs_more_than_vllm_keeps() -> None:
    """vLLM keeps window - 1 rows, with windows of 8 and 128."""
    for start in range(400):
        assert start - state_rows_read(start, ratio=4, overlapping=True).start <= 7
        assert start - state_rows_read(start, ratio=128, overlapping=False).start <= 127


def test_draft_rows_end_before_the_step() -> None:
    """The row before the step needs the step's first token; later ones it writes itself."""
    assert draft_rows_read(10, window=4) == (7, 10)
    assert draft_rows_read(2, window=4) == (0, 2)
    assert draft_rows_read(10, window=None) == (0, 10)


@pytest.mark.parametrize(("num_tokens", "rows"), [(3, (0, 3)), (8, (0, 8)), (9, (1, 9))])
def test_dspark_reads_what_the_target_reads_for_the_last_token(num_tokens, rows) -> None:
    """Window 8: with n tokens settled, the rows of the last 8 of them."""
    assert dspark_rows_read(num_tokens, window=8) == rows
    assert rows == sliding_rows_read(num_tokens - 1, num_tokens, window=8)
