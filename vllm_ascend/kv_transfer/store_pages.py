# SPDX-License-Identifier: Apache-2.0
"""Which pages AscendStore's pool is asked for, and is given: those before boundaries of its hits.

A request that goes on behind a boundary reads all pages of compressed and full groups before it,
and of windows the tail there, by vLLM's rule. Nobody looks up any other page of a windowed group.

AscendStore notes the blocks that a request is given, not those that it gives back. What a window
has left, and the state of spare tails once their step is over, belongs to others::

    windows             [c - window + 1, c) are held in front of a step that starts at c
    compressor state    its open windows alone; see ``read_span``
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.layout.specs import (
    group_specs,
    is_windowed,
    read_span,
    tokens_per_block,
    window_span,
)
from vllm_ascend.core.policy.boundaries import tail_blocks
from vllm_ascend.core.pool.block_pool_methods import NULL_BLOCK_ID


def _tail(spec: KVCacheSpec, block_tokens: int, boundary: int) -> range:
    """Return the ordinals of the blocks that a window reads behind a boundary."""
    return tail_blocks(boundary, window_span(spec).start(boundary), block_tokens)


def stored_tokens(worker: Any, num_tokens: int, block_hashes: Sequence[Any]) -> int:
    """Return the deepest boundary of whole blocks of every group whose pages are all there.

    Of compressed and full groups those are all pages before it, of windows those of its tail.

    Args:
        worker: vllm-ascend's ``KVPoolWorker``.
        num_tokens: Of the prompt; no boundary is behind them.
        block_hashes: The prompt's, one for each granule.
    """
    groups = [
        (spec, _keys(worker, group_id, num_tokens, block_hashes))
        for group_id, spec in enumerate(group_specs(worker.kv_cache_config))
    ]
    step = worker.cache_transfer_granularity
    boundaries = range(step, num_tokens // step * step + 1, step)
    rows = [
        [
            key
            for spec, keys in groups
            if not is_windowed(spec)
            for key in _new(spec, keys, end, step)
        ]
        for end in boundaries
    ]
    tails = [
        [
            key
            for spec, keys in groups
            if is_windowed(spec)
            for ordinal in _tail(spec, tokens_per_block(spec), end)
            for key in keys[ordinal]
        ]
        for end in boundaries
    ]
    there = _there(worker, [key for pages in (*rows, *tails) for key in pages])
    deepest = 0
    for end, new, tail in zip(boundaries, rows, tails, strict=True):
        if not there.issuperset(new):
            break
        if there.issuperset(tail):
            deepest = end
    return deepest


def _keys(
    worker: Any, group_id: int, num_tokens: int, block_hashes: Sequence[Any]
) -> list[tuple[str, ...]]:
    """Return by ordinal the keys of a block's page: one of every rank that has part of it."""
    num_parts = min(worker.tp_size, worker._get_group_num_kv_heads(group_id))
    pages = worker.token_database.process_tokens(
        num_tokens, block_hashes, kv_cache_group_id=group_id
    )
    return [
        tuple(
            key.to_string()
            .replace("@head_or_tp_rank:0", f"@head_or_tp_rank:{part}", 1)
            .replace("@pp_rank:0", f"@pp_rank:{stage}", 1)
            for stage in range(worker.pp_size)
            for part in range(num_parts)
        )
        for _, _, key in pages
    ]


def _new(spec: KVCacheSpec, keys: Sequence[tuple[str, ...]], end: int, step: int) -> Iterator[str]:
    """Yield the keys of the blocks between the boundary before and this one."""
    block_tokens = tokens_per_block(spec)
    for page in keys[(end - step) // block_tokens : end // block_tokens]:
        yield from page


def _there(worker: Any, keys: Iterable[str]) -> set[str]:
    names = list(dict.fromkeys(keys))
    found = worker.m_store.exists(names) if names else ()
    return {name for name, is_there in zip(names, found, strict=True) if is_there == 1}


def blocks_of_tails(
    scheduler: Any, tables: Sequence[list[int]], num_computed_tokens: int
) -> list[list[int]]:
    """Return a request's tables with null blocks for what it does not hold, or nobody looks up.

    Args:
        scheduler: vllm-ascend's ``KVPoolScheduler``.
        tables: The ids of the blocks that the request was given, per group.
        num_computed_tokens: Of the request, in front of the step.
    """
    specs = group_specs(scheduler.kv_cache_config)
    every = scheduler.cache_transfer_granularity
    told: list[list[int]] = []
    for spec, block_tokens, table in zip(specs, scheduler.grouped_block_size, tables, strict=True):
        if not is_windowed(spec):
            told.append(table)
            continue
        held_from = read_span(spec, specs).start(num_computed_tokens) // block_tokens
        tails = [NULL_BLOCK_ID] * len(table)
        for boundary in range(every, len(table) * block_tokens + 1, every):
            for ordinal in _tail(spec, block_tokens, boundary):
                if ordinal >= held_from:
                    tails[ordinal] = table[ordinal]
        told.append(tails)
    return told
