# SPDX-License-Identifier: Apache-2.0
"""What a compressor needs for the rows that a step closes: their rotation, and where they go.

Source: signature and checks of ``compressor_metadata`` in ``csrc/torch_binding.cpp``;
``csrc/attention/compressor_metadata/op_kernel/compressor_metadata.h``.
"""

from __future__ import annotations

import torch

_BLOCK_AND_ROW = 2


def compressor_metadata(
    rope_cos: torch.Tensor,
    rope_sin: torch.Tensor,
    cu_seqlens: torch.Tensor,
    start_pos: torch.Tensor,
    kv_block_table: torch.Tensor,
    kv_block_size: int,
    slot_mapping_format: int,
    compress_ratio: int,
    num_compressed_tokens: int,
    num_reqs_actual: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return cosines, sines and slots of the compressed rows that every request closes, in a row.

    A compressed row is turned as the first of its tokens. Rows behind the last closed one, and
    those that have no block or no rotation, are turned by nothing, and are written nowhere.

    Args:
        rope_cos: ``[positions, width]``, of all positions.
        rope_sin: Likewise.
        cu_seqlens: ``[at least requests + 1]``: where requests begin among the tokens.
        start_pos: ``[at least requests]``: the position of a request's first token.
        kv_block_table: ``[at least requests, blocks]`` of the compressed rows.
        kv_block_size: Rows of a block.
        slot_mapping_format: 2: block and row; the other one is of other hardware.
        compress_ratio: Tokens of a row.
        num_compressed_tokens: Rows that come out.
        num_reqs_actual: Requests; those behind them are padding.

    Returns:
        Twice ``[rows, 1, 1, width]`` in the type of ``rope_cos``, and ``[rows, 2]``, int32.

    Raises:
        ValueError: The binding refuses such arguments, or the slots are not block and row.
    """
    if slot_mapping_format != _BLOCK_AND_ROW:
        raise ValueError(f"compressor_metadata: slot_mapping_format {slot_mapping_format}")
    if min(kv_block_size, compress_ratio, num_compressed_tokens, num_reqs_actual) < 1:
        raise ValueError("compressor_metadata: sizes, rows and requests are at least one")
    if len(cu_seqlens) <= num_reqs_actual or len(start_pos) < num_reqs_actual:
        raise ValueError(f"compressor_metadata: too little is told of {num_reqs_actual} requests")
    cos = rope_cos.new_ones(num_compressed_tokens, rope_cos.shape[1])
    sin = torch.zeros_like(cos)
    slots = torch.tensor([[-1, kv_block_size - 1]], dtype=torch.int32)
    slots = slots.repeat(num_compressed_tokens, 1)
    closed = _closed(cu_seqlens.tolist(), start_pos[:num_reqs_actual].tolist(), compress_ratio)
    for row, (index, ordinal) in enumerate(closed[:num_compressed_tokens]):
        place, position = ordinal // kv_block_size, ordinal * compress_ratio
        if place >= kv_block_table.shape[1] or position >= len(rope_cos):
            continue
        block = int(kv_block_table[index, place])
        if block >= 0:
            cos[row], sin[row] = rope_cos[position], rope_sin[position]
            slots[row] = torch.tensor([block, ordinal % kv_block_size], dtype=torch.int32)
    return cos[:, None, None], sin[:, None, None], slots


def _closed(bounds: list[int], starts: list[int], ratio: int) -> list[tuple[int, int]]:
    """Return (request, ordinal) of every row that is closed."""
    return [
        (index, ordinal)
        for index, start in enumerate(starts)
        for ordinal in range(start // ratio, (start + bounds[index + 1] - bounds[index]) // ratio)
    ]


def compressor_metadata_out(
    rope_cos: torch.Tensor,
    rope_sin: torch.Tensor,
    cu_seqlens: torch.Tensor,
    start_pos: torch.Tensor,
    kv_block_table: torch.Tensor,
    kv_block_size: int,
    slot_mapping_format: int,
    compress_ratio: int,
    num_reqs_actual: int,
    compress_cos: torch.Tensor,
    compress_sin: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Write what :func:`compressor_metadata` returns into the last three tensors; return them."""
    found = compressor_metadata(
        rope_cos,
        rope_sin,
        cu_seqlens,
        start_pos,
        kv_block_table,
        kv_block_size,
        slot_mapping_format,
        compress_ratio,
        len(compress_cos),
        num_reqs_actual,
    )
    outputs = (compress_cos, compress_sin, slot_mapping)
    for output, value in zip(outputs, found, strict=True):
        output.copy_(value.view_as(output))
    return outputs
