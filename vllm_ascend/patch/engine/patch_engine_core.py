# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/engine/core.py`` and ``vllm/config/vllm.py``.

The configured block size survives, connectors' buffers count as memory, a data-parallel rank tells
its front ends of its cache, and other weights leave no rows in a tier.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

from vllm_ascend.core.connectors.connector_rules import IS_A_CACHE, declared, device_bytes
from vllm_ascend.core.events.teller import tell, tell_all
from vllm_ascend.patch.features import BLOCK_SIZE, CONNECTORS, DP_ROUTING
from vllm_ascend.patch.table import Add, Patch, changes
from vllm_ascend.prefix_cache_config import load_config

logger = init_logger("vllm.plugins.vllm_ascend_backport")

# --block-size while EngineCore sizes its caches; None outside of that.
_CONFIGURED_BLOCK_SIZE: ContextVar[int | None] = ContextVar("configured_block_size", default=None)
_GIB = 1 << 30


@changes("vllm.v1.engine.core:EngineCore._initialize_kv_caches", BLOCK_SIZE)
def wrap_initialize_kv_caches(self: EngineCore, vllm_config: VllmConfig, *, original: Callable):
    """EngineCore replaces --block-size by the smallest group's; workers do not."""
    configured = vllm_config.cache_config.block_size
    token = _CONFIGURED_BLOCK_SIZE.set(configured if load_config().apply_dsv4_patch else None)
    try:
        return original(self, vllm_config)
    finally:
        _CONFIGURED_BLOCK_SIZE.reset(token)


@changes("vllm.config.vllm:VllmConfig.validate_block_size", BLOCK_SIZE)
def wrap_validate_block_size(self: VllmConfig, *, original: Callable) -> None:
    """The only call before the replaced --block-size is read.

    Validate, after undoing EngineCore's ``block_size = min(group block sizes)``.

    There is no plainer place: the size is overwritten inline, this call reads it next, and
    behind it, still within the same function, executors are told.
    """
    configured = _CONFIGURED_BLOCK_SIZE.get()
    if configured is not None:
        self.cache_config.block_size = configured
    original(self)


@changes(
    "vllm.v1.core.kv_cache_utils:get_kv_cache_configs",
    CONNECTORS,
    aliases=("vllm.v1.engine.core:get_kv_cache_configs",),
)
def wrap_get_kv_cache_configs(
    vllm_config: VllmConfig,
    kv_cache_specs: list[dict[str, KVCacheSpec]],
    available_memory: list[int],
    *args: Any,
    original: Callable,
    **kwargs: Any,
) -> list[KVCacheConfig]:
    """vLLM measures memory before connectors take theirs.

    Whoever sets ``--kv-cache-memory-bytes`` has said what the KV cache gets.
    """
    taken = device_bytes(vllm_config.kv_transfer_config)
    if taken and vllm_config.cache_config.kv_cache_memory_bytes is None:
        logger.info("%.2f GiB of each device are left to the KV connector's buffers", taken / _GIB)
        available_memory = [memory - taken for memory in available_memory]
    return original(vllm_config, kv_cache_specs, available_memory, *args, **kwargs)


_RESET = "vllm.v1.engine.core:EngineCore._reset_caches"
_CONNECTOR_RESET = {
    **CONNECTORS,
    "upstream": "none: vLLM 0.23.0 does it",
    "remove_when": "vllm>=0.23",
    "superseded_by": f"{_RESET}(reset_connector)",
}


@changes(_RESET, _CONNECTOR_RESET)
def wrap_reset_caches(self: EngineCore, *args, original: Callable, **kwargs) -> None:
    """After sleep, a tier would bring rows of former weights."""
    original(self, *args, **kwargs)
    if IS_A_CACHE in declared(self.vllm_config.kv_transfer_config):
        self.scheduler.reset_connector_cache()


def _tell_behind(self: EngineCore, *, original: Callable):
    """Front ends hear of a step's changes before its answers."""
    outputs = original(self)
    tell(self)
    return outputs


@changes("vllm.v1.engine.core:EngineCoreProc._handle_client_request", DP_ROUTING)
def wrap_handle_client_request(
    self: EngineCoreProc, request_type: EngineCoreRequestType, request, *, original: Callable
) -> None:
    """Tells of a reset or sleep without waiting for a step."""
    original(self, request_type, request)
    if request_type == EngineCoreRequestType.UTILITY:
        tell(self)


PATCHES: tuple[Patch, ...] = (
    wrap_initialize_kv_caches,
    wrap_validate_block_size,
    wrap_get_kv_cache_configs,
    changes("vllm.v1.engine.core:EngineCore.step", DP_ROUTING)(_tell_behind),
    changes("vllm.v1.engine.core:EngineCore.step_with_batch_queue", DP_ROUTING)(_tell_behind),
    wrap_handle_client_request,
    wrap_reset_caches,
    Add(
        target="vllm.v1.engine.core:EngineCoreProc.ascend_tell_cache",
        replacement=tell_all,
        **DP_ROUTING,
        why="A late front end, or one that missed a message, asks for everything.",
    ),
)
