# SPDX-License-Identifier: Apache-2.0
"""The indexer: which compressed rows are worth attending to, from int8 queries and keys.

Source: ``csrc/attention/quant_lightning_indexer/README.md``.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.upstream.npu_reference import tags
from tests.upstream.npu_reference.paging import places

_CAUSAL = 3
_INT8 = 2
_METADATA_SIZE = 1024


def npu_quant_lightning_indexer_metadata(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Return ``[1024]``, int32: how the kernel shares its work out, of which there is none here."""
    return torch.zeros(_METADATA_SIZE, dtype=torch.int32)


def npu_quant_lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    query_dequant_scale: torch.Tensor,
    key_dequant_scale: torch.Tensor,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    metadata: torch.Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = _CAUSAL,
    pre_tokens: int = 2**63 - 1,
    next_tokens: int = 2**63 - 1,
    cmp_ratio: int = 1,
    return_value: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best rows for every query: scores are weighted sums of relu over the heads.

    Args:
        query: ``[tokens, heads, width]``, int8, the requests in a row.
        key: ``[blocks, rows, 1, width]``, int8.
        weights: ``[tokens, heads]``, fp16.
        query_dequant_scale: ``[tokens, heads]``, fp16.
        key_dequant_scale: ``[blocks, rows, 1]``, fp16.
        query_quant_mode: 0: a scale for every token and head.
        key_quant_mode: 0.
        actual_seq_lengths_query: ``[requests]``: where requests end in ``query``.
        actual_seq_lengths_key: ``[requests]``: tokens of the request (not rows), this step's
            included.
        block_table: ``[requests, blocks]``.
        metadata: What :func:`npu_quant_lightning_indexer_metadata` returned.
        layout_query: ``TND``.
        layout_key: ``PA_BSND``.
        sparse_count: How many rows at most.
        sparse_mode: 3: a query at position p sees rows ``[0, (p + 1) // cmp_ratio)``.
        pre_tokens: Of no effect, as is ``next_tokens``.
        next_tokens: See there.
        cmp_ratio: Tokens of a row.
        return_value: False.

    Returns:
        ``[tokens, 1, sparse_count]``, int32: rows of the request, the best first, of equal ones the
        first; -1 behind them. And nothing.

    Raises:
        ValueError: The call is not one that DeepSeek-V4 makes.
    """
    modes = (query_quant_mode, key_quant_mode, layout_query, layout_key, sparse_mode, return_value)
    if modes != (0, 0, "TND", "PA_BSND", _CAUSAL, False):
        raise ValueError(f"npu_quant_lightning_indexer: not written for {modes}")
    if metadata is None or metadata.shape != (_METADATA_SIZE,):
        raise ValueError("npu_quant_lightning_indexer: metadata of 1024 numbers is needed")
    assert actual_seq_lengths_query is not None and actual_seq_lengths_key is not None
    assert block_table is not None
    chosen = torch.full((len(query), 1, sparse_count), -1, dtype=torch.int32)
    first = 0
    ends = zip(actual_seq_lengths_query.tolist(), actual_seq_lengths_key.tolist(), strict=True)
    for index, (end, length) in enumerate(ends):
        tags.computes(key, index, length - (end - first), length)
        num_rows = length // cmp_ratio if end > first else 0
        keys = _keys(key, key_dequant_scale, block_table[index], index, num_rows, cmp_ratio)
        queries = query[first:end].float() * query_dequant_scale[first:end].float()[..., None]
        scores = _scores(queries, keys, weights[first:end])
        positions = torch.arange(length - (end - first), length)
        best = _best(scores, (positions + 1) // cmp_ratio, sparse_count)
        chosen[first:end, 0, : best.shape[1]] = best.int()
        first = end
    return chosen, query.new_empty(0, dtype=torch.float32)


def _scores(queries: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return ``[queries, rows]``: the weighted sum over the heads."""
    scores = torch.einsum("qhd,rd->qhr", queries, keys).relu()
    return (scores * weights.float()[..., None]).sum(1)


def npu_quant_lightning_indexer_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    query_dequant_scale: torch.Tensor,
    key_dequant_scale: torch.Tensor,
    topk: int,
    quant_mode: int,
    *,
    cu_seqlens_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    cmp_residual_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    metadata: torch.Tensor | None = None,
    layout_q: str = "TND",
    layout_k: str = "PA_BBND",
    mask_mode: int = _CAUSAL,
    cmp_ratio: int = 4,
    return_value: int = 0,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what :func:`npu_quant_lightning_indexer` does, told in rows instead of tokens.

    Args:
        quant_mode: 2: int8 with a scale for every token and head, or row.
        cu_seqlens_q: ``[requests + 1]``: where requests begin and end in ``query``.
        seqused_k: ``[requests]``: closed rows of the request, this step's included.
        cmp_residual_k: ``[requests]``: its tokens behind the last closed row.

    Raises:
        ValueError: See there.

    Source: ``csrc/attention/quant_lightning_indexer_v2/README.md``.
    """
    if (quant_mode, layout_k) != (_INT8, "PA_BBND") or any(o is not None for o in others.values()):
        raise ValueError(f"npu_quant_lightning_indexer_v2: {quant_mode}, {layout_k}, {others}")
    assert cu_seqlens_q is not None and seqused_k is not None and cmp_residual_k is not None
    return npu_quant_lightning_indexer(
        query,
        key,
        weights,
        query_dequant_scale,
        key_dequant_scale,
        actual_seq_lengths_query=cu_seqlens_q[1 : len(seqused_k) + 1],
        actual_seq_lengths_key=seqused_k * cmp_ratio + cmp_residual_k,
        block_table=block_table,
        metadata=metadata,
        layout_query=layout_q,
        layout_key="PA_BSND",
        sparse_count=topk,
        sparse_mode=mask_mode,
        cmp_ratio=cmp_ratio,
        return_value=bool(return_value),
    )


def _keys(
    key: torch.Tensor,
    scale: torch.Tensor,
    block_table: torch.Tensor,
    index: int,
    num_rows: int,
    ratio: int,
) -> torch.Tensor:
    """Return ``[rows, width]`` of a request, fp32."""
    blocks, rows = places(block_table, 0, num_rows, key.shape[1])
    ordinals = (torch.arange(num_rows) + 1) * ratio - 1
    for cache in (key, scale):
        tags.read(cache, blocks, rows, index, ordinals)
    return key[blocks, rows, 0].float() * scale[blocks, rows].float()


def _best(scores: torch.Tensor, num_closed: torch.Tensor, count: int) -> torch.Tensor:
    """Return ``[queries, count or fewer]``: rows by score, -1 behind those that a query sees."""
    closed = torch.arange(scores.shape[1])[None] < num_closed[:, None]
    scores = scores.masked_fill(~closed, float("-inf"))
    best = scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return torch.where(closed.gather(1, best), best, -1)
