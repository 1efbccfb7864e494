# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4-Flash's KV cache groups on A3, and what a worker makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

from vllm_ascend.core.layout import kv_cache_groups
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.releases import running_release
from vllm_ascend.worker.block_table import MultiGroupBlockTable


def flash_groups(rows: int) -> list[KVCacheGroupSpec]:
    """Return the groups at a block size of ``rows``."""
    kinds = kv_cache_groups.group_specs_by_kind(dsv4_flash_a3(rows).specs)
    return kv_cache_groups.split_into_groups(kinds)


def flash_config(num_blocks: int) -> KVCacheConfig:
    """Return what a worker is told to allocate, at block size 128."""
    groups = flash_groups(128)
    tensors = running_release().tensors(kv_cache_groups.plan_tensors(groups), num_blocks)
    return KVCacheConfig(num_blocks, tensors, groups)


def block_tables(
    groups: Sequence[KVCacheGroupSpec],
    max_model_len: int,
    *,
    max_num_batched_tokens: int,
    max_num_reqs: int,
) -> MultiGroupBlockTable:
    """Return the groups' block tables, on the CPU."""
    return MultiGroupBlockTable(
        max_num_reqs=max_num_reqs,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        pin_memory=False,
        device=torch.device("cpu"),
        block_sizes=[group.kv_cache_spec.block_size for group in groups],
        kernel_sizes=[[group.kv_cache_spec.block_size] for group in groups],
        kv_cache_groups=groups,
    )
