# SPDX-License-Identifier: Apache-2.0
"""KV cache groups over vLLM's own managers, for tests that need no coordinator."""

from __future__ import annotations

from collections.abc import Set
from math import lcm

import torch
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from vllm_ascend.core.admission.request_footprint import RequestFootprint
from vllm_ascend.core.group_managers import get_manager_for_kv_cache_spec
from vllm_ascend.core.layout.dsv4_specs import compressed_spec
from vllm_ascend.core.layout.groups import Group, Groups
from vllm_ascend.core.layout.specs import tokens_per_block
from vllm_ascend.core.plan.cache_plan import CachePlan, describe_groups
from vllm_ascend.core.plan.scheduler_facts import SchedulerFacts
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.core.pool.successors import SuccessorHashes
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.ranked_caching import RankedCaching
from vllm_ascend.core.reporting.cache_stats import CacheStats
from vllm_ascend.core.retention.ledger import Ledger
from vllm_ascend.releases import running_release

_SHAPE = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.bfloat16}


def full(block_tokens: int) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_tokens, **_SHAPE)


def window(block_tokens: int, window_tokens: int) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block_tokens, sliding_window=window_tokens, **_SHAPE)


def compressed(rows: int, ratio: int) -> KVCacheSpec:
    return compressed_spec(rows, ratio, **_SHAPE)


def make_plan(
    *specs: KVCacheSpec,
    alignment: int,
    hash_tokens: int | None = None,
    ends_inside_blocks: bool = False,
    changes_caching: bool = True,
    max_num_batched_tokens: int = 1024,
) -> CachePlan:
    """Return a plan whose hashes and hits are measured in ``alignment`` tokens by default."""
    return CachePlan(
        specs=specs,
        config=PrefixCacheConfig(),
        facts=SchedulerFacts(),
        granule=alignment,
        alignment=alignment,
        whole_block_tokens=lcm(*map(tokens_per_block, specs)),
        hash_tokens=hash_tokens or alignment,
        interval=None,
        keeps_fallback=False,
        is_stock=not changes_caching,
        ends_inside_blocks=ends_inside_blocks,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=1024,
    )


def make_groups(
    *specs: KVCacheSpec,
    alignment: int,
    pool: BlockPool | None = None,
    draft_groups: Set[int] = frozenset(),
    ends_inside_blocks: bool = False,
    changes_caching: bool = True,
) -> list[Group]:
    """Return one group per spec, each with the manager that it is served with."""
    pool = pool or BlockPool(20, True, 1)
    managers = [
        get_manager_for_kv_cache_spec(
            kv_cache_spec=spec,
            max_num_batched_tokens=1024,
            max_model_len=1024,
            block_pool=pool,
            enable_caching=True,
            kv_cache_group_id=group_id,
            **running_release().manager_arguments(alignment),
        )
        for group_id, spec in enumerate(specs)
    ]
    plan = make_plan(
        *specs,
        alignment=alignment,
        ends_inside_blocks=ends_inside_blocks,
        changes_caching=changes_caching,
    )
    return list(describe_groups(managers, draft_groups, plan).all)


class Caching(RankedCaching):
    """Caching by rank, without the coordinator that it is put over."""

    def __init__(
        self,
        pool: AscendBlockPool,
        groups: Groups,
        plan: CachePlan,
        *,
        has_connector: bool = False,
    ) -> None:
        self.block_pool, self.groups, self.plan = pool, groups, plan
        self.request_footprint, self.stats = RequestFootprint(plan), CacheStats()
        self.successors = SuccessorHashes(plan.hash_tokens)
        self.ledger = Ledger(has_connector=has_connector)
        self.connect_parts_by_rank()

    def find_longest_cache_hit(self, *_):
        raise NotImplementedError

    def new_step_starts(self) -> None:
        self.settle(self.ledger.next_step())
