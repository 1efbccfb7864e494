# SPDX-License-Identifier: Apache-2.0
"""Which rows of a group a model step touches, as pure functions over ints.

A step computes the tokens [start, end) of a request; all tokens before `start` were computed
earlier. A row covers `ratio` tokens: row i covers [i * ratio, (i + 1) * ratio).
"""

from __future__ import annotations

from typing import NamedTuple


class Rows(NamedTuple):
    """Half-open range of rows [start, end) of one request in one group."""

    start: int
    end: int


def written_rows(start: int, end: int, *, ratio: int) -> Rows:
    """Rows that come into being: those whose last token (i + 1) * ratio - 1 is in [start, end)."""
    return Rows(start // ratio, end // ratio)


def full_rows_read(end: int, *, ratio: int) -> Rows:
    """Full attention sees every row that is complete once the step has written its own."""
    return Rows(0, end // ratio)


def sliding_rows_read(start: int, end: int, *, window: int) -> Rows:
    """Token t attends to [t - window + 1, t]; the first token of the step looks back furthest."""
    return Rows(max(0, start - window + 1), end)


def chunked_rows_read(start: int, end: int, *, chunk: int) -> Rows:
    """Chunked local attention looks back to the start of the first token's chunk."""
    return Rows(start // chunk * chunk, end)


def state_rows_read(start: int, *, ratio: int, overlapping: bool) -> Rows:
    """Earlier rows that a compressor needs to go on at token `start`.

    The open window's rows, and with overlapping windows the window before it as well: at a
    window boundary an overlapping compressor reads `ratio` rows, another one nothing.
    """
    window_start = start // ratio * ratio
    return Rows(max(0, window_start - ratio) if overlapping else window_start, start)


def draft_rows_read(start: int, *, window: int | None) -> Rows:
    """Earlier rows of the draft layer: its row p depends on token p + 1 as well.

    Args:
        window: of the draft layer's sliding window in tokens; None for full attention.
    """
    return Rows(0 if window is None else max(0, start - window + 1), start)


def dspark_rows_read(num_tokens: int, *, window: int) -> Rows:
    """Rows of a DSpark layer that a draft behind the first `num_tokens` tokens reads.

    Its own block, [num_tokens, num_tokens + drafts), is written by the same pass.

    Args:
        window: of the draft layer's sliding window in tokens.
    """
    return Rows(max(0, num_tokens - window), num_tokens)
