# SPDX-License-Identifier: Apache-2.0
"""The KV cache groups of a model, described as the plan has them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.layout.groups import Group, Groups, hits_end_inside, tail_length, tail_spec
from vllm_ascend.core.layout.specs import (
    is_compressor_state,
    is_downward_closed,
    is_windowed,
    read_span,
    tokens_per_block,
    window_span,
)
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.policy.units import GroupId


def describe_groups(
    managers: Sequence[SingleTypeKVCacheManager], draft_groups: Set[int], plan: CachePlan
) -> Groups:
    """Return one description per group; ``draft_groups`` may hold layers of a draft model."""

    def tails(spec: KVCacheSpec, manager: SingleTypeKVCacheManager) -> dict[str, Any]:
        if plan.is_stock or not is_windowed(spec):
            return {"tail_start": manager.get_num_skipped_tokens}
        read, span = tail_spec(spec, plan.specs, plan.alignment), read_span(spec, plan.specs)
        return {
            "tail_start": span.start,
            "tail_length": tail_length(read),
            "tail_spec": read,
            "window": spec.sliding_window,
            "held": span if plan.is_sparse(spec) else window_span(spec),
        }

    return Groups(
        tuple(
            Group(
                id=GroupId(i),
                manager=manager,
                block_tokens=tokens_per_block(spec),
                is_downward_closed=is_downward_closed(spec),
                is_retained=is_windowed(spec),
                is_compressor_state=is_compressor_state(spec),
                is_eagle=i in draft_groups,
                ends_inside=plan.ends_inside_blocks and hits_end_inside(spec, plan.alignment),
                **tails(spec, manager),
            )
            for i, (manager, spec) in enumerate(zip(managers, plan.specs, strict=True))
        )
    )
