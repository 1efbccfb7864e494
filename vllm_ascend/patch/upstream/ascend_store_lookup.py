# SPDX-License-Identifier: Apache-2.0
"""How much of a prompt AscendStore's pool has: all pages that a request behind it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.layout.specs import (
    group_specs,
    is_windowed,
    tokens_per_block,
    unpack_uniform,
)
from vllm_ascend.core.policy.boundaries import tail_blocks


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
        [key for spec, keys in groups if is_windowed(spec) for key in _tail(spec, keys, end)]
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


def _tail(spec: KVCacheSpec, keys: Sequence[tuple[str, ...]], end: int) -> Iterator[str]:
    """Yield the keys of the blocks that a window reads behind a boundary."""
    first_token = max(end - unpack_uniform(spec).sliding_window + 1, 0)
    for ordinal in tail_blocks(end, first_token, tokens_per_block(spec)):
        yield from keys[ordinal]


def _there(worker: Any, keys: Iterable[str]) -> set[str]:
    names = list(dict.fromkeys(keys))
    found = worker.m_store.exists(names) if names else ()
    return {name for name, is_there in zip(names, found, strict=True) if is_there == 1}
