# SPDX-License-Identifier: Apache-2.0
"""Blocks that a connector could not load: which requests rest on them, in any number of groups."""

from __future__ import annotations

from collections.abc import Sequence, Set

from vllm_ascend.core.pool.block_pool_methods import NULL_BLOCK_ID

BlockTables = Sequence[Sequence[int]]
"""A request's block ids, per group."""


def lost_blocks(reported_block_ids: Set[int]) -> Set[int]:
    """Return the reported blocks without the null block, which holds nothing.

    Connectors may report whole tables, and it is in every windowed one of any request.
    """
    return reported_block_ids - {NULL_BLOCK_ID}


def blocks_to_evict(
    tables: BlockTables, block_tokens: Sequence[int], invalid_block_ids: Set[int]
) -> set[int]:
    """Return the blocks whose rows cannot be trusted; ``t`` is the first token not loaded::

        [0, t // block_tokens)    ordinals of the blocks that each group keeps
        [t // block_tokens, ...)  of those that are returned, but for the null block

    ``block_tokens`` are per group; the null block must not be among the invalid ones.
    """
    groups = list(zip(tables, block_tokens, strict=True))
    not_loaded = [
        ordinal * tokens
        for table, tokens in groups
        for ordinal, block_id in enumerate(table)
        if block_id in invalid_block_ids
    ]
    if not not_loaded:
        return set()
    behind = [set(table[min(not_loaded) // tokens :]) for table, tokens in groups]
    return set().union(*behind) - {NULL_BLOCK_ID}
