# SPDX-License-Identifier: Apache-2.0
"""What a compressor is told of its rows, against one look at every token."""

from __future__ import annotations

import pytest
import torch

from tests.upstream.npu_reference.compressor_metadata import compressor_metadata

WIDTH, ROWS, POSITIONS = 6, 8, 2048
# Where requests begin, and how many tokens they get: around every edge, and none.
STARTS = (0, 0, 1, 3, 4, 127, 128, 129, 511, 512, 513, 300)
COUNTS = (1, 4, 3, 1, 4, 1, 128, 383, 2, 0, 127, 513)


def told(ratio: int, *, size: int, table: torch.Tensor, num_requests: int = len(STARTS)):
    """Return what the operator says of all requests, and the rotation of every position."""
    cos, sin = torch.randn(2, POSITIONS, WIDTH)
    bounds = torch.tensor([0, *COUNTS]).cumsum(0).int()
    starts = torch.tensor(STARTS, dtype=torch.int32)
    said = compressor_metadata(cos, sin, bounds, starts, table, ROWS, 2, ratio, size, num_requests)
    return said, cos, sin


def tables() -> torch.Tensor:
    """Return block tables with blocks in any order."""
    blocks = -(-POSITIONS // (4 * ROWS))
    return torch.randperm(len(STARTS) * blocks).view(len(STARTS), blocks).int()


@pytest.mark.parametrize("ratio", [4, 128])
def test_every_closed_row_has_its_rotation_and_its_place(ratio):
    table = tables()
    expected = [
        (index, position)
        for index, (start, count) in enumerate(zip(STARTS, COUNTS, strict=True))
        for position in range(start, start + count)
        if position % ratio == ratio - 1
    ]
    size = sum(COUNTS) // ratio + len(COUNTS)
    (cos, sin, slots), all_cos, all_sin = told(ratio, size=size, table=table)
    assert cos.shape == sin.shape == (size, 1, 1, WIDTH) and slots.dtype == torch.int32
    for row, (index, position) in enumerate(expected):
        first = position - ratio + 1
        assert torch.equal(cos[row, 0, 0], all_cos[first])
        assert torch.equal(sin[row, 0, 0], all_sin[first])
        stored = position // ratio
        assert slots[row].tolist() == [int(table[index, stored // ROWS]), stored % ROWS]
    behind = slice(len(expected), None)
    assert len(cos[behind]) and torch.equal(cos[behind], torch.ones_like(cos[behind]))
    assert not sin[behind].any()
    assert (slots[behind] == torch.tensor([-1, ROWS - 1])).all()


def test_requests_of_the_padding_close_nothing():
    (_, _, slots), _, _ = told(4, size=40, table=tables(), num_requests=2)
    assert (slots[:, 0] >= 0).sum() == 1  # the second request closes one, the first none


def test_rows_without_a_block_are_written_nowhere():
    """Neither behind the table nor where it names no block."""
    size = sum(COUNTS) // 4 + len(COUNTS)
    (cos, _, slots), _, _ = told(4, size=size, table=torch.full((len(STARTS), 2), -1))
    assert (slots[:, 0] == -1).all() and (cos == 1).all()
    (_, _, slots), _, _ = told(4, size=size, table=torch.ones(len(STARTS), 1, dtype=torch.int32))
    beyond = sum(
        position // 4 >= ROWS
        for start, count in zip(STARTS, COUNTS, strict=True)
        for position in range(start, start + count)
        if position % 4 == 3
    )
    closed = sum((s + c) // 4 - s // 4 for s, c in zip(STARTS, COUNTS, strict=True))
    assert (slots[:, 0] == 1).sum() == closed - beyond


@pytest.mark.parametrize(
    "changes",
    [{"slot_mapping_format": 1}, {"num_reqs_actual": 0}, {"num_reqs_actual": 2}],
)
def test_what_the_binding_refuses(changes):
    arguments = {
        "rope_cos": torch.ones(8, WIDTH),
        "rope_sin": torch.zeros(8, WIDTH),
        "cu_seqlens": torch.tensor([0, 4]),
        "start_pos": torch.tensor([0]),
        "kv_block_table": torch.ones(1, 1, dtype=torch.int32),
        "kv_block_size": ROWS,
        "slot_mapping_format": 2,
        "compress_ratio": 4,
        "num_compressed_tokens": 1,
        "num_reqs_actual": 1,
    }
    compressor_metadata(**arguments)
    with pytest.raises(ValueError, match="compressor_metadata"):
        compressor_metadata(**arguments | changes)
