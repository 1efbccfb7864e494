# SPDX-License-Identifier: Apache-2.0
"""Which blocks of a request AscendStore may store pages of, and load pages into.

AscendStore notes the blocks that a request is given, not those that it gives back. What a window
has left, and the state of spare tails once their step is over, belongs to others::

    windows             [c - window + 1, c) are held in front of a step that starts at c
    compressor state    its open windows alone; see ``read_span``

Nor does anybody look up a page of a windowed group outside the tails of the boundaries at which
hits of the pool end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1.kv_cache_interface import SlidingWindowSpec

from vllm_ascend.core.layout.specs import group_specs, read_span
from vllm_ascend.core.policy.boundaries import tail_blocks
from vllm_ascend.core.pool.block_pool_methods import NULL_BLOCK_ID


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
        if not isinstance(spec, SlidingWindowSpec):
            told.append(table)
            continue
        held_from = read_span(spec, specs).start(num_computed_tokens) // block_tokens
        tails = [NULL_BLOCK_ID] * len(table)
        for boundary in range(every, len(table) * block_tokens + 1, every):
            # Of vLLM's window, as the pool's look-up asks for it.
            first_token = max(boundary - spec.sliding_window + 1, 0)
            for ordinal in tail_blocks(boundary, first_token, block_tokens):
                if ordinal >= held_from:
                    tails[ordinal] = table[ordinal]
        told.append(tails)
    return told
