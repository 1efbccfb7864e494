# SPDX-License-Identifier: Apache-2.0
"""The compressor: tokens in, one row for every window that they close out; open windows in pages.

Source: ``csrc/attention/compressor/README.md``; which state rows are read and written:
``op_kernel/arch32/compressor_block_vec_perf.h`` there (``ReadState``, ``WriteToCacheState``).
"""

from __future__ import annotations

import torch

from tests.upstream.npu_reference import tags
from tests.upstream.npu_reference.norms import npu_rms_norm
from tests.upstream.npu_reference.paging import places
from tests.upstream.npu_reference.rotary import npu_rotary_mul

_INTERLEAVE = 2


def compressor(
    x: torch.Tensor,
    wkv: torch.Tensor,
    wgate: torch.Tensor,
    state_cache: torch.Tensor,
    ape: torch.Tensor,
    norm_weight: torch.Tensor,
    rope_sin: torch.Tensor,
    rope_cos: torch.Tensor,
    state_block_table: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    seqused: torch.Tensor | None,
    start_pos: torch.Tensor | None,
    rope_head_dim: int,
    cmp_ratio: int,
    coff: int,
    norm_eps: float,
    rotary_mode: int,
    cache_mode: int,
) -> torch.Tensor:
    """Write the state of the tokens, and return the rows of the windows that they close.

    All state is read before any is written: nothing orders the requests of a call.

    Args:
        x: ``[tokens, hidden]``, the requests in a row.
        wkv: ``[coff * width, hidden]``.
        wgate: Likewise.
        state_cache: ``[blocks, rows, 2 * coff * width]``, fp32: values, then scores with their
            bias. Rows in block 0 are not written; reads are not guarded.
        ape: ``[ratio, coff * width]``, the bias of a score by its place in the window.
        norm_weight: ``[width]``.
        rope_sin: ``[rows out, rope width]``.
        rope_cos: Likewise.
        state_block_table: ``[requests, blocks]``.
        cu_seqlens: ``[requests + 1]``: where requests begin in ``x``.
        seqused: None: all tokens count.
        start_pos: ``[requests]``: the position of a request's first token.
        rope_head_dim: How much of a row, at its end, is turned.
        cmp_ratio: Tokens of a window.
        coff: 2: the first half of a token's state goes to the next window; 1: nothing does.
        norm_eps: Of the norm.
        rotary_mode: 2: neighbours are a pair.
        cache_mode: 1: paged.

    Returns:
        ``[rows of rope_sin, width]``: the closed windows of the requests in a row. What is behind
        them the kernel leaves as it was in memory; here it is not a number.

    Raises:
        ValueError: The call is not one that DeepSeek-V4 makes.
    """
    if (rotary_mode, cache_mode, seqused) != (_INTERLEAVE, 1, None):
        raise ValueError("compressor: only interleaved, paged and whole requests are written")
    assert state_block_table is not None and cu_seqlens is not None and start_pos is not None
    width = len(norm_weight)
    states = torch.cat([x.float() @ wkv.float().T, x.float() @ wgate.float().T], dim=-1)
    bounds = list(
        zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], start_pos.tolist(), strict=False)
    )
    closed = []
    for index, (first, end, start) in enumerate(bounds):
        biases = ape.float()[torch.arange(start, start + end - first) % cmp_ratio]
        states[first:end, coff * width :] += biases
        tags.computes(state_cache, index, start, start + end - first)
        if start // cmp_ratio < (start + end - first) // cmp_ratio:
            block_table = state_block_table[index]
            closed.append(
                _closed(states[first:end], state_cache, block_table, index, start, cmp_ratio, coff)
            )
    for index, (first, end, start) in enumerate(bounds):
        _write(states, state_cache, state_block_table[index], first, end, start)
    result = x.new_full((len(rope_sin), width), float("nan"))
    if closed:
        pooled = npu_rms_norm(torch.cat(closed), norm_weight, norm_eps)[0]
        count = len(pooled)
        turned = pooled[:, width - rope_head_dim :]
        turned.copy_(npu_rotary_mul(turned, rope_cos[:count], rope_sin[:count], "interleave"))
        result[:count] = pooled.to(x.dtype)
    return result


def _write(
    states: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    first: int,
    end: int,
    start: int,
) -> None:
    """Write the states of a request's tokens ``[first, end)``, but what belongs in block 0."""
    blocks, rows = places(block_table, start, start + end - first, cache.shape[1])
    kept = blocks != 0
    cache[blocks[kept], rows[kept]] = states[first:end][kept]
    tags.wrote(cache, blocks[kept], rows[kept], torch.arange(first, end)[kept])


def _closed(
    states: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    index: int,
    start: int,
    ratio: int,
    coff: int,
) -> torch.Tensor:
    """Return a row for every window that a request's step closes, with what the cache has of it."""
    oldest = max((start // ratio - (coff - 1)) * ratio, 0)
    blocks, rows = places(block_table, oldest, start, cache.shape[1])
    tags.read(cache, blocks, rows, index, torch.arange(oldest, start))
    tokens = torch.cat([cache[blocks, rows], states])
    return _windows(tokens, oldest, start, start + len(states), ratio, coff)


def _windows(
    tokens: torch.Tensor, oldest: int, start: int, stop: int, ratio: int, coff: int
) -> torch.Tensor:
    """Return a row for every window closed: the mean of its values, weighted by their scores.

    Args:
        tokens: ``[tokens from the oldest position on, 2 * coff * width]``.
        oldest: A position where a window begins.
        start: The first position of the step.
        stop: Behind the last one.
        ratio: Tokens of a window.
        coff: 2: a window goes over the previous one's first halves as well.
    """
    first, last = start // ratio, stop // ratio
    skipped = oldest // ratio
    whole = tokens[: (last - skipped) * ratio].unflatten(0, (-1, ratio))
    values, scores = whole.chunk(2, dim=-1)
    if coff == 1:
        return (values * scores.softmax(1)).sum(1)
    width = values.shape[-1] // 2
    if skipped == first:  # nothing lies before the first window of a request
        values = torch.nn.functional.pad(values, (0, 0, 0, 0, 1, 0))
        scores = torch.nn.functional.pad(scores, (0, 0, 0, 0, 1, 0), value=float("-inf"))
    values, scores = (
        torch.cat([part[:-1, :, :width], part[1:, :, width:]], dim=1) for part in (values, scores)
    )
    return (values * scores.softmax(1)).sum(1)
