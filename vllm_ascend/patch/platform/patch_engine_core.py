# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/engine/core.py`` and ``vllm/config/vllm.py``: the configured block size survives."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from vllm.config import VllmConfig
from vllm.v1.engine.core import EngineCore

from vllm_ascend.patch.features import BLOCK_SIZE
from vllm_ascend.patch.table import Patch, changes
from vllm_ascend.prefix_cache_config import load_config

# --block-size while EngineCore sizes its caches; None outside of that.
_CONFIGURED_BLOCK_SIZE: ContextVar[int | None] = ContextVar("configured_block_size", default=None)


@changes("vllm.v1.engine.core:EngineCore._initialize_kv_caches", BLOCK_SIZE)
def wrap_initialize_kv_caches(original: Callable) -> Callable:
    """EngineCore overwrites --block-size with the smallest group's (8 for DeepSeek-V4), while
    workers keep the configured one."""

    def _initialize_kv_caches(self: EngineCore, vllm_config: VllmConfig):
        configured = vllm_config.cache_config.block_size
        token = _CONFIGURED_BLOCK_SIZE.set(configured if load_config().apply_dsv4_patch else None)
        try:
            return original(self, vllm_config)
        finally:
            _CONFIGURED_BLOCK_SIZE.reset(token)

    return _initialize_kv_caches


@changes("vllm.config.vllm:VllmConfig.validate_block_size", BLOCK_SIZE)
def wrap_validate_block_size(original: Callable) -> Callable:
    """The one call between the overwriting and its first reader."""

    def validate_block_size(self: VllmConfig) -> None:
        """Validate, after undoing EngineCore's ``block_size = min(group block sizes)``.

        There is no plainer place: the size is overwritten inline, this call reads it next, and
        behind it, still within the same function, executors are told.
        """
        configured = _CONFIGURED_BLOCK_SIZE.get()
        if configured is not None:
            self.cache_config.block_size = configured
        original(self)

    return validate_block_size


PATCHES: tuple[Patch, ...] = (wrap_initialize_kv_caches, wrap_validate_block_size)
