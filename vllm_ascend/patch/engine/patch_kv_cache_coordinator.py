# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/kv_cache_coordinator.py``: which coordinator a scheduler gets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import lcm
from typing import Any

from vllm import envs
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_coordinator import (
    KVCacheCoordinator,
    KVCacheCoordinatorNoPrefixCache,
)
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

from vllm_ascend.core.checks import startup_report
from vllm_ascend.core.checks.early_check import check_model_runner
from vllm_ascend.core.connectors.connector_rules import NEEDS_COORDINATOR
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.layout.kv_cache_groups import has_row_layout
from vllm_ascend.core.layout.specs import group_specs, has_rings, is_windowed
from vllm_ascend.core.plan.scheduler_facts import scheduler_facts
from vllm_ascend.core.pool import exact_hashes
from vllm_ascend.core.retention.interval_option import agreed_interval
from vllm_ascend.patch.features import COORDINATOR
from vllm_ascend.patch.table import Patch, changes
from vllm_ascend.prefix_cache_config import is_left_to_vllm, load_config
from vllm_ascend.releases import running_release
from vllm_ascend.tier.registration import CONNECTOR

_ALIGNMENT = "scheduler_block_size"
_PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE=best"
# Under vLLM's own name, whose handlers print it.
_logger = init_logger("vllm.plugins.vllm_ascend_backport")

__all__ = ["PATCHES", "AscendHybridKVCacheCoordinator", "get_kv_cache_coordinator"]


def get_kv_cache_coordinator(
    kv_cache_config: KVCacheConfig,
    max_model_len: int,
    use_eagle: bool,
    enable_caching: bool,
    hash_block_size: int,
    eagle_attn_layer_names: list[str] | None = None,
    allow_partial_hash_hits: bool = True,
    **others: Any,
) -> KVCacheCoordinator:
    """Return Ascend's coordinator, or vLLM's plain one if nothing is cached.

    Args:
        allow_partial_hash_hits: In releases that ask; vLLM's own are for Mamba layers.
        **others: What vLLM's constructors take as well; in some releases the alignment
            (``scheduler_block_size``) and how far drafts look ahead (``num_prefill_lookahead``).

    Raises:
        ValueError: See :class:`AscendHybridKVCacheCoordinator` and :func:`check_model_runner`; or
            drafts of several modules look further ahead than a token.
    """
    config, release = load_config(), running_release()
    arguments: dict[str, Any] = {
        "kv_cache_config": kv_cache_config,
        "max_model_len": max_model_len,
        "use_eagle": use_eagle,
        "hash_block_size": hash_block_size,
        **others,
    }
    if not enable_caching:
        _check_runner(kv_cache_config, copies_blocks=False)
        if config.changes_caching:
            _logger.warning("prefix cache: it is off, so none of its switches has an effect")
        return _without_cache(arguments)
    _check_lookahead(arguments.pop("num_prefill_lookahead", 0))
    _check_hashes(arguments.pop("num_hash_lookahead_tokens", 0))
    arguments["max_num_batched_tokens"] = release.tokens_of_step(
        arguments.pop(release.step_tokens), scheduler_facts().num_in_flight_tokens
    )
    arguments["local_kv_retention_interval"] = agreed_interval(
        release.retention_option(kv_cache_config), config
    )
    coordinator = AscendHybridKVCacheCoordinator(
        **arguments,
        enable_caching=enable_caching,
        eagle_attn_layer_names=eagle_attn_layer_names,
    )
    _check_runner(kv_cache_config, copies_blocks=coordinator.plan.copies_blocks)
    summary = startup_report.summary(coordinator.plan, kv_cache_config.num_blocks)
    _logger.info("prefix cache: %s", summary)
    for warning in startup_report.warnings(coordinator.plan):
        _logger.warning("prefix cache: %s", warning)
    return coordinator


def _check_runner(kv_cache_config: KVCacheConfig, *, copies_blocks: bool) -> None:
    check_model_runner(
        is_v2=bool(envs.VLLM_USE_V2_MODEL_RUNNER) and not running_release().second_runner_serves,
        counts_rows=has_row_layout(group_specs(kv_cache_config)),
        copies_blocks=copies_blocks,
    )


def _check_lookahead(num_modules: int) -> None:
    if num_modules > 1:
        raise ValueError(
            f"speculative decoding by {num_modules} modules cannot be used with this prefix cache, "
            "which remembers one token behind a draft layer's row: use one module, or unset "
            "VLLM_ASCEND_PREFIX_CACHE_PROFILE and the switches that it stands for"
        )


def _check_hashes(num_lookahead_tokens: int) -> None:
    if num_lookahead_tokens:
        raise ValueError(
            f"num_hash_lookahead_tokens ({num_lookahead_tokens}) must be 0 with this prefix cache, "
            "whose names cover a block's own tokens alone"
        )


def _check_interval_is_ours(specs: list[KVCacheSpec]) -> None:
    if is_left_to_vllm():
        what = "a layout that counts rows" if has_row_layout(specs) else "the tier"
        another = "VLLM_ASCEND_APPLY_DSV4_PATCH=1" if has_row_layout(specs) else _PROFILE
        raise ValueError(
            "VLLM_PREFIX_CACHE_RETENTION_INTERVAL alone is an option of vLLM's own coordinator, "
            f"which cannot serve {what}: set {another} as well, or unset it"
        )


def _without_cache(arguments: dict[str, Any]) -> KVCacheCoordinator:
    """vLLM's asserts that whole blocks of every group fit in, although nothing can be hit."""
    if _ALIGNMENT in arguments:
        rows = [spec.block_size for spec in group_specs(arguments["kv_cache_config"])]
        arguments[_ALIGNMENT] = lcm(arguments[_ALIGNMENT], *rows)
    return KVCacheCoordinatorNoPrefixCache(**arguments)


def serves(specs: list[KVCacheSpec]) -> bool:
    """Whether Ascend's coordinator serves a model of the scheduler that is being built.

    Raises:
        ValueError: The KV connector needs it, and vLLM's own must serve this model.
    """
    if has_row_layout(specs) or has_rings(specs):
        return True
    release = running_release()
    if scheduler_facts().connector_takes(NEEDS_COORDINATOR):
        if why := release.why_left_to_vllm(specs):
            raise ValueError(
                f"the KV connector {CONNECTOR} cannot be used with this model, which vLLM "
                f"{release.vllm}'s own coordinator must serve, because {why}: leave "
                "--kv-transfer-config out"
            )
        return True
    return _is_asked_for(specs) and not _why_left(specs)


def _is_asked_for(specs: list[KVCacheSpec]) -> bool:
    config = load_config()
    return (
        (config.retention is not None and not config.retention_from_profile)
        or bool(config.pin_swa_tokens)
        or (config.changes_caching and any(map(is_windowed, specs)))
        or (config.apply_dsv4_patch and running_release().counts_rows and len(specs) > 1)
    )


def _why_left(specs: list[KVCacheSpec]) -> str:
    # Without windows the switches have nothing to work on, and the coordinator says so.
    return running_release().why_left_to_vllm(specs) if any(map(is_windowed, specs)) else ""


@changes(
    "vllm.v1.core.kv_cache_coordinator:get_kv_cache_coordinator",
    COORDINATOR,
    aliases=(
        "vllm.v1.core.kv_cache_manager:get_kv_cache_coordinator",
        "vllm.v1.simple_kv_offload.manager:get_kv_cache_coordinator",
    ),
)
def wrap_get_kv_cache_coordinator(
    kv_cache_config: KVCacheConfig, *args, original: Callable, **kwargs
) -> KVCacheCoordinator:
    """Retention and row layouts need a look-up that walks aligned boundaries.

    vLLM's choice stays unless a feature is on or the layout counts rows.
    """
    specs = group_specs(kv_cache_config)
    if serves(specs):
        _check_interval_is_ours(specs)
        arguments = inspect.signature(original).bind(kv_cache_config, *args, **kwargs).arguments
        coordinator = get_kv_cache_coordinator(**arguments)
    else:
        if _is_asked_for(specs):
            why = (running_release().vllm, _why_left(specs))
            _logger.warning("prefix cache: this model is left to vLLM %s: %s", *why)
        coordinator = original(kv_cache_config, *args, **kwargs)
    is_ours = isinstance(coordinator, AscendHybridKVCacheCoordinator)
    if not is_ours:  # what means nothing to a model must not change the order of its blocks
        coordinator.block_pool.scratch_first = False
    exact_hashes.tell_apart_from_now_on(is_ours and not coordinator.plan.is_stock)
    return coordinator


PATCHES: tuple[Patch, ...] = (wrap_get_kv_cache_coordinator,)
