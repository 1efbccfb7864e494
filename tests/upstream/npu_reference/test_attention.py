# SPDX-License-Identifier: Apache-2.0
"""The reference attention and indexer against dense formulas over whole requests."""

from __future__ import annotations

import pytest
import torch

from tests.upstream.npu_reference.attention import (
    npu_sparse_attn_sharedkv,
    npu_sparse_attn_sharedkv_metadata,
)
from tests.upstream.npu_reference.indexer import (
    npu_quant_lightning_indexer,
    npu_quant_lightning_indexer_metadata,
)
from tests.upstream.npu_reference.quantization import npu_dynamic_quant
from tests.upstream.npu_reference.scatter import npu_scatter_nd_update_v2

HEADS, WIDTH, WINDOW = 4, 16, 128
LENGTHS = (1, 3, 4, 5, 127, 128, 129, 511, 512, 513)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def paged(
    requests: list[torch.Tensor], rows_per_block: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a cache with the rows of requests, in blocks in any order, and its table."""
    num_blocks = max(-(-len(rows) // rows_per_block) for rows in requests) + 1
    table = (torch.randperm(num_blocks * len(requests)) + 1).view(len(requests), -1).int()
    width = requests[0].shape[-1]
    # What was never written would show: not a number, or a large one.
    nothing = 127 if dtype == torch.int8 else float("nan")
    cache = torch.full((table.numel() + 1, rows_per_block + 1, 1, width), nothing, dtype=dtype)
    cache = cache[:, :rows_per_block]
    for blocks, rows in zip(table, requests, strict=True):
        places = torch.arange(len(rows))
        indices = torch.stack([blocks[places // rows_per_block], places % rows_per_block], -1)
        npu_scatter_nd_update_v2(cache, indices, rows[:, None].to(dtype))
    return cache, table


def attend(
    queries: list[torch.Tensor],
    tokens: list[torch.Tensor],
    compressed: list[torch.Tensor] | None,
    ratio: int,
    sinks: torch.Tensor,
    chosen: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run the reference over pages."""
    ori_kv, ori_table = paged(tokens, 32)
    cmp_kv, cmp_table = paged(compressed, 16) if compressed else (None, None)
    bounds = torch.tensor([0, *(len(part) for part in queries)]).cumsum(0).int()
    return npu_sparse_attn_sharedkv(
        torch.cat(queries),
        ori_kv=ori_kv,
        cmp_kv=cmp_kv,
        cmp_sparse_indices=chosen,
        ori_block_table=ori_table,
        cmp_block_table=cmp_table,
        cu_seqlens_q=bounds,
        seqused_kv=torch.tensor([len(rows) for rows in tokens]),
        sinks=sinks,
        metadata=npu_sparse_attn_sharedkv_metadata(),
        softmax_scale=WIDTH**-0.5,
        cmp_ratio=ratio,
        ori_win_left=WINDOW - 1,
        layout_q="TND",
        layout_kv="PA_ND",
    )[0]


def dense(
    query: torch.Tensor, position: int, rows: list[torch.Tensor], sinks: torch.Tensor
) -> torch.Tensor:
    """Return one query's answer from the rows it sees: exponentials, summed up one by one."""
    seen = torch.stack(rows).double()
    scores = (query.double() @ seen.T * WIDTH**-0.5).exp()
    return (scores @ seen / (scores.sum(1) + sinks.double().exp())[:, None]).float()


@pytest.mark.parametrize("ratio", [0, 4, 128])
@pytest.mark.parametrize("length", LENGTHS)
def test_every_query_sees_its_window_and_the_closed_rows(ratio, length):
    tokens, sinks = torch.randn(length, WIDTH), torch.randn(HEADS)
    compressed = torch.randn(length // max(ratio, 1), WIDTH)
    count = min(length, 7)
    queries = torch.randn(count, HEADS, WIDTH)
    got = attend([queries], [tokens], [compressed] if ratio else None, ratio, sinks)
    for index, query in enumerate(queries):
        position = length - count + index
        rows = list(tokens[max(position - WINDOW + 1, 0) : position + 1])
        if ratio:
            rows += list(compressed[: (position + 1) // ratio])
        torch.testing.assert_close(
            got[index], dense(query, position, rows, sinks), rtol=1e-4, atol=1e-5
        )


def test_only_the_rows_that_are_named_are_seen():
    length, ratio = 130, 4
    tokens, sinks = torch.randn(length, WIDTH), torch.randn(HEADS)
    compressed = torch.randn(length // ratio, WIDTH)
    queries = torch.randn(3, HEADS, WIDTH)
    # Row 31 closes with token 127, the first query's own; row 32 nobody sees.
    chosen = torch.tensor([[31, 0, 5, -1], [31, 0, -1, -1], [32, 7, 8, 9]]).int()[:, None]
    got = attend([queries], [tokens], [compressed], ratio, sinks, chosen)
    for index, named in enumerate([[31, 0, 5], [31, 0], [7, 8, 9]]):
        position = length - 3 + index
        rows = list(tokens[max(position - WINDOW + 1, 0) : position + 1])
        rows += [compressed[row] for row in named]
        torch.testing.assert_close(
            got[index], dense(queries[index], position, rows, sinks), rtol=1e-4, atol=1e-5
        )


def test_requests_stand_alone_and_one_without_tokens_is_passed_over():
    lengths, sinks = (513, 1, 200, 130), torch.randn(HEADS)
    tokens = [torch.randn(length, WIDTH) for length in lengths]
    compressed = [torch.randn(max(length // 4, 1), WIDTH) for length in lengths]
    queries = [torch.randn(count, HEADS, WIDTH) for count in (1, 1, 0, 130)]
    got = attend(queries, tokens, compressed, 4, sinks).split([1, 1, 0, 130])
    for index, part in enumerate(queries):
        if len(part):
            alone = attend([part], [tokens[index]], [compressed[index]], 4, sinks)
            torch.testing.assert_close(got[index], alone)


def scores_of(
    query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, closed: int
) -> torch.Tensor:
    return torch.stack(
        [sum(w * (q @ key).relu() for w, q in zip(weights, query, strict=True)) for key in keys]
    )[:closed]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 127, 128, 129, 511, 512, 513])
@pytest.mark.parametrize("sparse_count", [8, 256])
def test_the_indexer_takes_the_best_closed_rows(length, sparse_count):
    num_rows, count = length // 4, min(length, 5)
    keys, key_scales = npu_dynamic_quant(torch.randn(max(num_rows, 1), WIDTH))
    queries, query_scales = npu_dynamic_quant(torch.randn(count, HEADS, WIDTH))
    weights = torch.rand(count, HEADS).half()
    key_cache, table = paged([keys], 16, torch.int8)
    scale_cache = torch.full((len(key_cache), 16, 1), float("nan"), dtype=torch.half)
    places = torch.arange(len(keys))
    scale_cache[table[0][places // 16].long(), places % 16, 0] = key_scales.half()
    chosen, _ = npu_quant_lightning_indexer(
        queries,
        key_cache,
        weights,
        query_scales.half(),
        scale_cache,
        actual_seq_lengths_query=torch.tensor([count]),
        actual_seq_lengths_key=torch.tensor([length]),
        block_table=table,
        metadata=npu_quant_lightning_indexer_metadata(),
        layout_query="TND",
        layout_key="PA_BSND",
        sparse_count=sparse_count,
        sparse_mode=3,
        cmp_ratio=4,
    )
    assert chosen.shape == (count, 1, sparse_count)
    real_keys = keys.float() * key_scales.half().float()[:, None]
    real_queries = queries.float() * query_scales.half().float()[..., None]
    for index in range(count):
        closed = (length - count + index + 1) // 4
        scores = scores_of(real_queries[index], weights[index].float(), real_keys, closed)
        named = chosen[index, 0][chosen[index, 0] >= 0].long()
        assert len(named) == min(closed, sparse_count) == len(named.unique())
        rest = torch.ones(closed, dtype=torch.bool)
        rest[named] = False
        if rest.any():
            assert scores[named].min() >= scores[rest].max() - 1e-4
        torch.testing.assert_close(scores[named], scores[named].sort(descending=True).values)
