# SPDX-License-Identifier: Apache-2.0
"""What a request holds in a model's groups, from their specs and the switches in force."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from vllm.config import VllmConfig
from vllm.utils.math_utils import cdiv
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec

from vllm_ascend.core.admission.request_footprint import (
    GroupFootprint,
    RequestFootprint,
    SparseRows,
    StepLimits,
)
from vllm_ascend.core.cache_plan import CachePlan, plan_cache
from vllm_ascend.core.layout.groups import hits_end_inside, tail_length, tail_spec
from vllm_ascend.core.layout.specs import (
    compress_ratio,
    counts_rows,
    is_downward_closed,
    is_windowed,
    tail_start,
    tokens_per_block,
    unpack_uniform,
)
from vllm_ascend.core.retention.sparse_state_manager import is_sparse_state
from vllm_ascend.core.scheduler_facts import SchedulerFacts, facts_of
from vllm_ascend.prefix_cache_config import PrefixCacheConfig


def request_footprint(plan: CachePlan) -> RequestFootprint:
    """Return what one request holds at most."""
    facts, config = plan.facts, plan.config
    step = StepLimits(
        plan.max_num_batched_tokens,
        num_draft_tokens=facts.num_draft_tokens,
        num_unconfirmed=plan.num_unconfirmed_tokens,
    )
    # Replay boundary, junction, and where the next turn would resume: with drafts one more.
    num_singled_out = 3 + (facts.num_draft_tokens > 0) + (config.retention == "auto")

    def footprint(spec: KVCacheSpec) -> GroupFootprint | None:
        block_tokens = tokens_per_block(spec)
        if is_downward_closed(spec):
            return GroupFootprint(
                block_tokens,
                row_tokens=compress_ratio(spec) if counts_rows(spec) else 1,
                is_copied=plan.ends_inside_blocks
                and not plan.is_stock
                and hits_end_inside(spec, plan.alignment),
            )
        if not is_windowed(spec):
            return None
        sparse = None
        if is_sparse_state(spec, plan):
            sparse = SparseRows(
                _end_blocks(spec, plan.specs, step),
                tail_length(tail_spec(spec, plan.specs, plan.alignment)),
                plan.alignment,
                plan.tails_interval,
                num_singled_out,
            )
        return GroupFootprint(block_tokens, window=spec.sliding_window, sparse=sparse)

    return RequestFootprint(tuple(map(footprint, plan.specs)), step, plan.max_model_len)


def _end_blocks(spec: KVCacheSpec, specs: Sequence[KVCacheSpec], step: StepLimits) -> int:
    """Return the most blocks that hold what is read of a step's end, wherever that lies."""
    start, block_tokens = tail_start(spec, specs), tokens_per_block(spec)
    # Both repeat with the window and the block; far from the start, where rows are cut off.
    period = lcm(spec.sliding_window, block_tokens)
    far = period * (2 + cdiv(step.num_unconfirmed, period))

    def blocks(end: int) -> int:
        first = start(end - step.num_unconfirmed) // block_tokens
        return cdiv(end + step.num_draft_tokens, block_tokens) - first

    return max(map(blocks, range(far, far + period)))


def blocks_of_longest_request(
    vllm_config: VllmConfig, groups: Sequence[KVCacheGroupSpec], config: PrefixCacheConfig
) -> int | None:
    """Return the most blocks that a request of ``max_model_len`` tokens holds in all groups.

    Returns:
        ``None`` where no switch changes what is cached: vLLM's own numbers hold.

    Raises:
        ValueError: The retention interval does not fit the layout.
    """
    specs = [unpack_uniform(group.kv_cache_spec) for group in groups]
    is_cached = vllm_config.cache_config.enable_prefix_caching
    # As the coordinator is chosen: without windows vLLM's own is left in charge.
    if not (is_cached and config.changes_caching and any(map(is_windowed, specs))):
        return None
    footprint = request_footprint(
        plan_cache(
            specs,
            config,
            SchedulerFacts(**facts_of(vllm_config, config)),
            max_model_len=vllm_config.model_config.max_model_len,
            max_num_batched_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        )
    )

    def blocks(group_id: int, spec: KVCacheSpec) -> int:
        known = footprint.blocks(group_id)
        if known is None:
            return cdiv(spec.max_memory_usage_bytes(vllm_config), spec.page_size_bytes)
        return known

    return sum(blocks(group_id, spec) for group_id, spec in enumerate(specs))


def max_memory_usage_bytes(
    vllm_config: VllmConfig, groups: Sequence[KVCacheGroupSpec], config: PrefixCacheConfig
) -> int | None:
    """Return the bytes of a pool that holds such a request; ``None`` as above."""
    num_blocks = blocks_of_longest_request(vllm_config, groups, config) if groups else None
    if num_blocks is None:
        return None
    # +1: the null block is nobody's.
    return (num_blocks + 1) * kv_cache_utils._pool_bytes_per_block(list(groups))
