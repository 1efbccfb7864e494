# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's block geometry on Ascend: numbers only.

A compressed block stores ``rows`` rows; the other groups share its pages, so their blocks and
paddings scale with it. Source: the KV cache of DeepSeek-V4-Flash as vllm-ascend lays it out.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD_SIZE = 512
INDEXER_HEAD_SIZE = 128
SLIDING_WINDOW = 128
C4_RATIO = 4
C128_RATIO = 128
# The C4 compressor's windows overlap, so it looks back over two of them.
C4_STATE_WINDOW = 2 * C4_RATIO
C128_STATE_WINDOW = C128_RATIO


@dataclass(frozen=True)
class Dsv4Device:
    """How a device stores rows."""

    row_bytes: int  # of a compressed or window row
    indexer_row_bytes: int  # of an indexer key with its scale
    c128_state_share: int  # compressed rows of a page for one row of C128 state in it


# bf16 rows; int8 indexer keys with an fp16 scale each.
A3 = Dsv4Device(HEAD_SIZE * 2, INDEXER_HEAD_SIZE + 2, c128_state_share=4)
# fp8 rows with bf16 positions and scales; fp8 indexer keys with an fp32 scale each.
A5 = Dsv4Device(640, INDEXER_HEAD_SIZE + 4, c128_state_share=8)


def state_size(head_size: int, *, overlapping: bool) -> int:
    """Return the elements of a state row: values and scores, twice if windows overlap."""
    return 2 * head_size * (2 if overlapping else 1)


@dataclass(frozen=True)
class Dsv4BlockSizes:
    """Blocks and pages for one ``--block-size``."""

    compressed: int  # rows of a C4, C128 or indexer block
    swa: int  # tokens of a sliding-window block
    c4_state: int  # tokens of a block of C4 or indexer compressor state
    c128_state: int  # tokens of a block of C128 compressor state
    page_bytes: int  # of every page but the indexer's and its state's, after padding
    indexer_page_bytes: int  # of those


def dsv4_block_sizes(rows: int, device: Dsv4Device = A3) -> Dsv4BlockSizes:
    """Return a device's geometry for compressed blocks of ``rows`` rows.

    Raises:
        ValueError: ``rows`` is not a positive multiple of 16 (the C4-state block would vanish,
            and the attention kernels want such multiples).
    """
    if rows <= 0 or rows % 16:
        raise ValueError(f"compressed block size ({rows}) must be a positive multiple of 16 rows")
    return Dsv4BlockSizes(
        compressed=rows,
        swa=rows,
        c4_state=rows // 16,
        c128_state=rows // device.c128_state_share,
        page_bytes=rows * device.row_bytes,
        indexer_page_bytes=rows * device.indexer_row_bytes,
    )
