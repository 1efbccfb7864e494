# SPDX-License-Identifier: Apache-2.0
"""The raw KV cache tensors: whether they cover the layers of the groups, and as pages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from vllm.v1.kv_cache_interface import KVCacheConfig

from vllm_ascend.worker.block_copies import RawTensors, unique_pages

_NAMES_SHOWN = 8


class KVCacheTensorsError(RuntimeError):
    """Layers without a tensor, or tensors for layers that no group has."""


def allocate_pages(
    runner: Any,
    kv_cache_config: KVCacheConfig,
    allocate: Callable[[Any, KVCacheConfig], dict[str, RawTensors]],
) -> dict[str, RawTensors]:
    """Let a model runner allocate its KV cache, and keep the tensors as pages to copy.

    Args:
        runner: The runner; its ``kv_cache_pages`` are set.
        kv_cache_config: What it is told to allocate.
        allocate: Its own method.

    Returns:
        Layer name -> raw tensors, as the method has returned them.

    Raises:
        KVCacheTensorsError: See :func:`check_layers_are_planned`.
    """
    check_layers_are_planned(kv_cache_config, runner.runner_only_attn_layers)
    raw_tensors = allocate(runner, kv_cache_config)
    runner.kv_cache_pages = unique_pages(raw_tensors.values(), kv_cache_config.num_blocks)
    return raw_tensors


def check_layers_are_planned(
    kv_cache_config: KVCacheConfig, runner_only_layers: Collection[str] = ()
) -> None:
    """Check that every layer of a group has a tensor, and every tensor a layer.

    Args:
        kv_cache_config: What a worker is told to allocate.
        runner_only_layers: Layers whose cache the runner allocates itself.

    Raises:
        KVCacheTensorsError: Names missing and extra layers, and sums the tensors up.
    """
    needed = {
        name for group in kv_cache_config.kv_cache_groups for name in group.layer_names
    } - set(runner_only_layers)
    tensors = kv_cache_config.kv_cache_tensors
    planned = {name for tensor in tensors for name in tensor.shared_by}
    missing, extra = needed - planned, planned - needed
    if not missing and not extra:
        return
    groups = kv_cache_config.kv_cache_groups
    raise KVCacheTensorsError(
        "KV cache tensors and layers disagree: "
        f"{len(missing)} layers have no tensor{_names(missing)}, "
        f"{len(extra)} layers with a tensor are in no group{_names(extra)}. "
        f"There are {len(tensors)} tensors of {sum(tensor.size for tensor in tensors):,} bytes for "
        f"{kv_cache_config.num_blocks:,} blocks, and {len(groups)} groups of "
        f"{', '.join(str(len(group.layer_names)) for group in groups)} layers."
    )


def _names(layers: Iterable[str]) -> str:
    names = sorted(layers)
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f" ({', '.join(names[:_NAMES_SHOWN])}{more})"
