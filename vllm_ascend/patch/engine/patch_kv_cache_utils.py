# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/kv_cache_utils.py``: the free queue's front, and Ascend's layouts.

In later releases the functions that plan a pool stand in ``kv_cache_planning.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
)
from vllm.v1.request import Request

from vllm_ascend.core.admission import request_footprint
from vllm_ascend.core.connectors.connector_rules import allows_partial_hits
from vllm_ascend.core.layout import block_sizes
from vllm_ascend.core.layout import kv_cache_groups as ascend_layout
from vllm_ascend.core.layout.specs import group_specs, is_windowed
from vllm_ascend.core.pool import block_pool_methods, exact_hashes
from vllm_ascend.patch.features import FOOTPRINT, ISOLATION, RETENTION, ROW_LAYOUT, Entries
from vllm_ascend.patch.table import Add, Patch, Wrap, changes
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import running_release

_MODULE = "vllm.v1.core.kv_cache_utils"


def _change(
    name: str, feature: Entries, *holders: str, **others: Any
) -> Callable[[Callable], Wrap]:
    """Return what makes a function a patch of this module's; ``holders`` import it, too."""
    aliases = tuple(f"{holder}:{name}" for holder in holders)
    return changes(f"{_MODULE}:{name}", feature, aliases=aliases, **others)


@_change("get_request_block_hasher", ISOLATION, "vllm.v1.engine.core")
def wrap_get_request_block_hasher(
    *args, original: Callable, **kwargs
) -> Callable[[Request], list[BlockHash]]:
    """vLLM's hashes leave out what tells some prompts apart."""
    return exact_hashes.hasher_in_force(original(*args, **kwargs))


@_change("generate_block_hash_extra_keys", ISOLATION, "vllm.v1.core.block_pool")
def wrap_generate_block_hash_extra_keys(
    request: Request,
    start_token_idx: int,
    end_token_idx: int,
    start_mm_idx: int,
    *,
    original: Callable,
) -> tuple[tuple[Any, ...] | None, int]:
    """Adds them: the adapter's empty place beside a salt, every image, what is an embedding."""
    return exact_hashes.extra_keys(request, start_token_idx, end_token_idx, start_mm_idx, original)


def specs_of(groups: list[KVCacheGroupSpec]) -> list[KVCacheSpec]:
    """Return the specs of groups, packed as they are."""
    return [group.kv_cache_spec for group in groups]


@_change("resolve_kv_cache_block_sizes", ROW_LAYOUT, "vllm.v1.engine.core")
def wrap_resolve_kv_cache_block_sizes(
    kv_cache_config: KVCacheConfig, vllm_config: VllmConfig, *, original: Callable
) -> tuple[int, int]:
    """Alignment and hash size must follow a block's tokens, not its rows."""
    config, specs = load_config(), group_specs(kv_cache_config)
    has_mamba = any(isinstance(spec, MambaSpec) for spec in specs)
    hybrid = any(map(is_windowed, specs)) and not has_mamba
    is_ours = (
        config.changes_caching
        and hybrid
        and not running_release().why_left_to_vllm(specs)
        # Context parallelism is Ascend's own; for other layouts vLLM refuses it.
        and block_sizes.context_parallel_ranks(vllm_config) == 1
    )
    if ascend_layout.has_row_layout(specs) or is_ours:
        return block_sizes.resolve_block_sizes(
            kv_cache_config,
            vllm_config,
            config,
            hash_tokens=getattr(vllm_config.cache_config, running_release().hash_size_field),
            allows_partial_hits=allows_partial_hits(vllm_config.kv_transfer_config),
        )
    return original(kv_cache_config, vllm_config)


def for_ascend_layouts(name: str, ours: Callable, pick_specs: Callable, why: str) -> Wrap:
    """Let ``ours`` answer where the specs that ``pick_specs`` takes from the arguments say so."""

    def choose(*args: Any, original: Callable, **kwargs: Any) -> Any:
        arguments = inspect.signature(original).bind(*args, **kwargs).args
        is_ours = ascend_layout.is_ascend_layout(pick_specs(*arguments))
        return (ours if is_ours else original)(*arguments)

    return _change(name, ROW_LAYOUT, why=why)(choose)


def plan_tensors(
    vllm_config: VllmConfig, groups: list[KVCacheGroupSpec], available_memory: int
) -> tuple[int, list[KVCacheTensor]]:
    """Return the blocks that fit into so many bytes, and the tensors of as many."""
    num_blocks = available_memory // ascend_layout.bytes_per_block(groups)
    release = running_release()
    num_blocks = release.planning.may_override_num_blocks(vllm_config, num_blocks)
    return num_blocks, release.tensors(ascend_layout.plan_tensors(groups), num_blocks)


def _group_packed(
    vllm_config: VllmConfig, kv_cache_spec: dict[str, KVCacheSpec]
) -> list[KVCacheGroupSpec]:
    kinds = ascend_layout.group_specs_by_kind(kv_cache_spec)
    groups = ascend_layout.split_into_groups(kinds)
    running_release().flag_draft_groups(vllm_config, kv_cache_spec, groups)
    return groups


def _plan_config(
    vllm_config: VllmConfig, groups: list[KVCacheGroupSpec], available_memory: int
) -> KVCacheConfig:
    num_blocks, tensors = plan_tensors(vllm_config, groups, available_memory)
    interval = vllm_config.cache_config.prefix_cache_retention_interval
    return KVCacheConfig(num_blocks, tensors, groups, prefix_cache_retention_interval=interval)


@_change("_max_memory_usage_bytes_from_groups", ROW_LAYOUT)
def wrap_max_memory_usage_bytes_from_groups(*args: Any, original: Callable, **kwargs: Any) -> int:
    """The bytes counted must be those of the planned tensors."""
    # Later releases tell who plans, in front of all else.
    told = inspect.signature(original).bind(*args, **kwargs).arguments
    vllm_config, groups = told["vllm_config"], told["kv_cache_groups"]
    in_force = request_footprint.max_memory_usage_bytes(
        vllm_config, groups, load_config(), running_release()
    )
    if in_force is not None:
        return in_force
    if ascend_layout.is_ascend_layout(specs_of(groups)):
        return ascend_layout.max_memory_usage_bytes(vllm_config, groups)
    return original(*args, **kwargs)


@_change("get_max_concurrency_for_kv_cache_config", FOOTPRINT)
def wrap_get_max_concurrency(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, *, original: Callable
) -> float:
    """The logged concurrency must count what a request really holds."""
    blocks = request_footprint.blocks_of_longest_request(
        vllm_config, kv_cache_config.kv_cache_groups, load_config(), running_release()
    )
    if blocks is None:
        return original(vllm_config, kv_cache_config)
    # -1: the null block is nobody's.
    return (kv_cache_config.num_blocks - 1) / blocks


PATCHES: tuple[Patch, ...] = (
    Add(
        target=f"{_MODULE}:FreeKVCacheBlockQueue.prepend_n",
        replacement=block_pool_methods.prepend_n,
        **RETENTION,
        why="Hands out blocks without reusable content before cached ones.",
        superseded_by=f"{_MODULE}:FreeKVCacheBlockQueue.prepend_n",
    ),
    wrap_get_request_block_hasher,
    wrap_generate_block_hash_extra_keys,
    wrap_resolve_kv_cache_block_sizes,
    # Earlier releases have others in the place of these two (row_layout).
    for_ascend_layouts(
        "_get_packed_kv_cache_groups",
        _group_packed,
        lambda vllm_config, specs: specs.values(),
        "vLLM packs all layers' pages into one block; vllm-ascend's groups share tensors.",
    ),
    for_ascend_layouts(
        "get_kv_cache_config_from_groups",
        _plan_config,
        lambda vllm_config, groups, available_memory: specs_of(groups),
        "Plans tensors over all groups' page sizes.",
    ),
    for_ascend_layouts(
        "_pool_bytes_per_block",
        # Later releases tell the configuration in front of the groups.
        lambda *told: ascend_layout.bytes_per_block(told[-1]),
        lambda *told: specs_of(told[-1]),
        "The bytes counted must be those of the planned tensors.",
    ),
    wrap_max_memory_usage_bytes_from_groups,
    wrap_get_max_concurrency,
)
