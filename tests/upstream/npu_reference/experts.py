# SPDX-License-Identifier: Apache-2.0
"""Experts on one rank: sort tokens by expert, multiply, gate, multiply, put them back.

Sources: torch_npu's documentation of ``npu_moe_init_routing_v2``, ``npu_grouped_matmul``,
``npu_swiglu`` and ``npu_moe_token_unpermute``; ``csrc/moe/moe_init_routing_custom``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.upstream.npu_reference.quantization import npu_dynamic_quant, npu_quant_matmul

_COUNTS = 1


def npu_moe_init_routing_custom(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = 0,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort the tokens' copies by their experts.

    Args:
        x: ``[tokens, hidden]``.
        expert_idx: ``[tokens, k]``.
        scale: None, as is ``offset``: nothing is quantised here.
        offset: See there.
        active_num: Rows that are kept; all of them.
        expert_capacity: Of no effect without dropping.
        expert_num: Experts in all.
        drop_pad_mode: 0: nothing is dropped.
        expert_tokens_num_type: 1: rows of every expert.
        expert_tokens_num_flag: True: they are asked for.
        quant_mode: -1: rows stay as they are; 1: int8 with a scale for each row.
        active_expert_range: First expert and end; all of them on one rank.
        row_idx_type: 0: where every copy went.

    Returns:
        ``[tokens * k, hidden]`` sorted, ``[tokens * k]`` places of the copies, token by token,
        ``[experts]`` counts, and the scales.

    Raises:
        ValueError: Something else is asked for.
    """
    num_copies = expert_idx.numel()
    asked = (scale, offset, drop_pad_mode, expert_tokens_num_type, row_idx_type)
    if asked != (None, None, 0, _COUNTS, 0) or not expert_tokens_num_flag:
        raise ValueError(f"npu_moe_init_routing_custom: not written for {asked}")
    if tuple(active_expert_range) != (0, expert_num) or active_num not in (-1, 0, num_copies):
        raise ValueError("npu_moe_init_routing_custom: only all experts, on one rank, are written")
    flat = expert_idx.flatten().long()
    order = flat.argsort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(num_copies)
    counts = torch.bincount(flat, minlength=expert_num)
    rows = x[order // expert_idx.shape[1]]
    if quant_mode == 1:
        rows, scales = npu_dynamic_quant(rows)
    elif quant_mode == -1:
        scales = x.new_empty(0, dtype=torch.float32)
    else:
        raise ValueError(f"npu_moe_init_routing_custom: quant_mode {quant_mode}")
    return rows, places.int(), counts, scales


def npu_grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: Sequence[torch.Tensor] | None = None,
    scale: Sequence[torch.Tensor] | None = None,
    per_token_scale: Sequence[torch.Tensor] | None = None,
    group_list: torch.Tensor,
    split_item: int = 0,
    group_type: int = -1,
    group_list_type: int = 0,
    output_dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """Multiply every group of rows by its own matrix.

    Args:
        x: One tensor ``[rows, k]``, sorted by group; in floating point or int8.
        weight: One tensor ``[groups, k, n]``.
        bias: None.
        scale: Of int8 matrices, one tensor ``[groups, n]``.
        per_token_scale: Of int8 rows, one tensor ``[rows]``.
        group_list: ``[groups]``: rows of every group, or where it ends.
        split_item: 2: one tensor comes out.
        group_type: 0: rows are grouped.
        group_list_type: 1: rows; 0: where groups end.
        output_dtype: Of products of int8; others keep their type.

    Returns:
        One tensor ``[rows, n]``; rows behind the last group are not computed.

    Raises:
        ValueError: Something else is asked for.
    """
    if (split_item, group_type, bias) != (2, 0, None) or group_list_type not in (0, 1):
        raise ValueError("npu_grouped_matmul: only groups of rows into one tensor are written")
    (rows,), (matrices,) = x, weight
    ends = group_list.cumsum(0) if group_list_type == 1 else group_list
    quantized = rows.dtype == torch.int8
    if quantized != (scale is not None and per_token_scale is not None):
        raise ValueError("npu_grouped_matmul: int8 has scales of both, and nothing else has")
    dtype = output_dtype if quantized else rows.dtype
    result = rows.new_full((len(rows), matrices.shape[2]), float("nan"), dtype=dtype)
    first = 0
    for group, end in enumerate(ends.tolist()):
        part = slice(first, end)
        if scale is not None and per_token_scale is not None:
            worth = {"scale": scale[0][group], "pertoken_scale": per_token_scale[0][part]}
            result[part] = npu_quant_matmul(
                rows[part], matrices[group], **worth, output_dtype=result.dtype
            )
        else:
            result[part] = rows[part] @ matrices[group]
        first = end
    return [result]


def npu_swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Return ``silu(first half) * second half``."""
    gate, up = x.chunk(2, dim)
    return torch.nn.functional.silu(gate) * up


def npu_moe_token_unpermute(
    permuted_tokens: torch.Tensor, sorted_indices: torch.Tensor, probs: torch.Tensor | None = None
) -> torch.Tensor:
    """Return every token as the weighted sum of its copies.

    Args:
        permuted_tokens: ``[tokens * k, hidden]``.
        sorted_indices: ``[tokens * k]``, where the copies of the tokens are, token by token.
        probs: ``[tokens, k]``; without it ``k`` is 1.
    """
    k = 1 if probs is None else probs.shape[1]
    copies = permuted_tokens[sorted_indices.long()].unflatten(0, (-1, k))
    if probs is None:
        return copies[:, 0]
    return (copies.float() * probs.float()[..., None]).sum(1).to(permuted_tokens.dtype)
