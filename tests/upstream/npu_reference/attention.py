# SPDX-License-Identifier: Apache-2.0
"""Attention over a window of tokens and over compressed rows, both in pages.

Source: ``csrc/attention/sparse_attn_sharedkv/README.md``; which compressed rows a query sees:
``op_kernel/arch32/sparse_attn_sharedkv_scfa_kernel.h`` there.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.upstream.npu_reference import tags
from tests.upstream.npu_reference.paging import places

_BAND, _CAUSAL = 4, 3
_METADATA_SIZE = 1024


def npu_sparse_attn_sharedkv_metadata(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Return ``[1024]``, int32: how the kernel shares its work out, of which there is none here."""
    return torch.zeros(_METADATA_SIZE, dtype=torch.int32)


def npu_sparse_attn_sharedkv(
    q: torch.Tensor,
    *,
    ori_kv: torch.Tensor | None = None,
    cmp_kv: torch.Tensor | None = None,
    ori_sparse_indices: torch.Tensor | None = None,
    cmp_sparse_indices: torch.Tensor | None = None,
    ori_block_table: torch.Tensor | None = None,
    cmp_block_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_ori_kv: torch.Tensor | None = None,
    cu_seqlens_cmp_kv: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_kv: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    metadata: torch.Tensor | None = None,
    softmax_scale: float = 0.0,
    cmp_ratio: int = 0,
    ori_mask_mode: int = _BAND,
    cmp_mask_mode: int = _CAUSAL,
    ori_win_left: int = 128,
    ori_win_right: int = 0,
    layout_q: str = "BSND",
    layout_kv: str = "PA_ND",
    return_softmax_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend: a row is key and value of all heads, and every head has a sink.

    A query at position p sees tokens ``[p - ori_win_left, p + ori_win_right]`` and compressed rows
    ``[0, (p + 1) // cmp_ratio)``: of those, where indices are given, only the ones they name.

    Args:
        q: ``[tokens, heads, width]``, the requests in a row; the last one is at ``seqused_kv - 1``.
        ori_kv: ``[blocks, rows, 1, width]``, tokens.
        cmp_kv: ``[blocks, rows, 1, width]``, compressed; None: the window alone.
        ori_sparse_indices: ``[tokens, 1, count]``, slots of tokens; -1: none. All queries of a
            request name the same, and see them whatever the window is. None: the window.
        cmp_sparse_indices: ``[tokens, 1, count]``, rows of the request; -1: none. None: all rows.
        ori_block_table: ``[requests, blocks]``.
        cmp_block_table: ``[requests, blocks]``.
        cu_seqlens_q: ``[requests + 1]``.
        cu_seqlens_ori_kv: Of no effect on pages, as is ``cu_seqlens_cmp_kv``.
        cu_seqlens_cmp_kv: See there.
        seqused_q: Of no effect.
        seqused_kv: ``[requests]``: tokens of the request, this step's included.
        sinks: ``[heads]``, fp32: what attends to nothing.
        metadata: What :func:`npu_sparse_attn_sharedkv_metadata` returned.
        softmax_scale: Of the scores.
        cmp_ratio: Tokens of a compressed row; 0 or 1 where there are none.
        ori_mask_mode: 4: the window.
        cmp_mask_mode: 3: causal.
        ori_win_left: Tokens before the query that it sees.
        ori_win_right: None behind it.
        layout_q: ``TND``.
        layout_kv: ``PA_ND``.
        return_softmax_lse: False.

    Returns:
        ``[tokens, heads, width]``, and nothing. Tokens of no request are not a number.

    Raises:
        ValueError: The call is not one that DeepSeek-V4 makes.
    """
    modes = (ori_mask_mode, cmp_mask_mode, ori_win_right, layout_q, layout_kv)
    if modes != (_BAND, _CAUSAL, 0, "TND", "PA_ND"):
        raise ValueError(f"npu_sparse_attn_sharedkv: not written for {modes}")
    if metadata is None or metadata.shape != (_METADATA_SIZE,):
        raise ValueError("npu_sparse_attn_sharedkv: metadata of 1024 numbers is needed")
    assert ori_kv is not None and ori_block_table is not None and cu_seqlens_q is not None
    assert seqused_kv is not None and sinks is not None
    output = torch.full_like(q, float("nan"))
    bounds = zip(
        cu_seqlens_q.tolist(), cu_seqlens_q.tolist()[1:], seqused_kv.tolist(), strict=False
    )
    for index, (first, end, length) in enumerate(bounds):
        if end == first:
            continue
        positions = torch.arange(length - (end - first), length)
        tags.computes(ori_kv, index, int(positions[0]), length)
        if ori_sparse_indices is None:
            keys, seen = _window(ori_kv, ori_block_table, index, positions, ori_win_left)
        else:
            keys = _slots(ori_kv, index, ori_sparse_indices[first:end, 0], length)
            seen = torch.ones(end - first, len(keys), dtype=torch.bool)
        if cmp_kv is not None:
            assert cmp_block_table is not None
            named = None if cmp_sparse_indices is None else cmp_sparse_indices[first:end, 0]
            rows, selected = _compressed(
                cmp_kv, cmp_block_table, index, positions, cmp_ratio, named
            )
            keys, seen = torch.cat([keys, rows]), torch.cat([seen, selected], dim=1)
        output[first:end] = _attend(q[first:end], keys, seen, sinks, softmax_scale)
    return output, q.new_empty(0, dtype=torch.float32)


def _window(
    cache: torch.Tensor, block_table: torch.Tensor, index: int, positions: torch.Tensor, left: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens that the queries of a request see, and which query sees which."""
    oldest, length = max(int(positions[0]) - left, 0), int(positions[-1]) + 1
    age = positions[:, None] - torch.arange(oldest, length)[None]
    keys = _rows(cache, block_table, index, oldest, length, 1)
    return keys, (age >= 0) & (age <= left)


def _slots(cache: torch.Tensor, index: int, named: torch.Tensor, length: int) -> torch.Tensor:
    """Return the tokens that all queries of a request name; the last one is the request's last.

    Raises:
        ValueError: The queries name different ones.
    """
    if not bool((named == named[0]).all()):
        raise ValueError("npu_sparse_attn_sharedkv: only indices that are alike are written")
    slots = named[0][named[0] >= 0].long()
    blocks, rows = slots // cache.shape[1], slots % cache.shape[1]
    tags.read(cache, blocks, rows, index, torch.arange(length - len(slots), length))
    return cache[blocks, rows, 0].float()


def _compressed(
    cache: torch.Tensor,
    block_table: torch.Tensor,
    index: int,
    positions: torch.Tensor,
    ratio: int,
    named: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the compressed rows of a request, and which query sees which; those that none sees are
    not read."""
    num_closed = (positions + 1) // ratio
    num_rows = int(num_closed[-1])
    seen = torch.arange(num_rows)[None] < num_closed[:, None]
    if named is not None:
        seen &= _named(named, num_rows)
    used = seen.any(0).nonzero().flatten()
    rows = torch.zeros(num_rows, cache.shape[-1])
    rows[used] = _rows(cache, block_table, index, 0, num_rows, ratio, used)
    return rows, seen


def _rows(
    cache: torch.Tensor,
    block_table: torch.Tensor,
    index: int,
    first: int,
    end: int,
    ratio: int,
    used: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return ``[rows, width]`` of a request: ``[first, end)``, or those of them that are used."""
    blocks, rows = places(block_table[index], first, end, cache.shape[1])
    ordinals = torch.arange(first, end)
    if used is not None:
        blocks, rows, ordinals = blocks[used], rows[used], ordinals[used]
    tags.read(cache, blocks, rows, index, (ordinals + 1) * ratio - 1)
    return cache[blocks, rows, 0].float()


def _named(indices: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Return ``[queries, rows]``: which rows the indices of a query name."""
    named = torch.zeros(len(indices), num_rows + 1, dtype=torch.bool)
    inside = (indices >= 0) & (indices < num_rows)
    named.scatter_(1, torch.where(inside, indices, num_rows).long(), True)
    return named[:, :num_rows]


def _attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    seen: torch.Tensor,
    sinks: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    scores = torch.einsum("qhd,rd->hqr", queries.float(), keys) * scale
    scores = scores.masked_fill(~seen[None], float("-inf"))
    rest = sinks.float().view(-1, 1, 1).expand(-1, len(queries), 1)
    weights = torch.cat([scores, rest], dim=-1).softmax(-1)[..., :-1]
    return torch.einsum("hqr,rd->qhd", weights, keys).to(queries.dtype)
