# SPDX-License-Identifier: Apache-2.0
"""``vllm/platforms/cpu.py``: DeepSeek-V4 has the chunks and blocks that were asked for."""

from __future__ import annotations

from collections.abc import Callable

from vllm.config import VllmConfig
from vllm.platforms.cpu import CpuPlatform

from vllm_ascend.patch.table import Patch, changes
from vllm_ascend_evaluation.models.patches.feature import DSV4_ON_CPU

_ARCHITECTURE = "DeepseekV4ForCausalLM"


@changes("vllm.platforms.cpu:CpuPlatform.check_and_update_config", DSV4_ON_CPU)
def wrap_check_and_update_config(
    cls: type[CpuPlatform], vllm_config: VllmConfig, *, original: Callable
) -> None:
    """On the CPU vLLM cuts no prompts of MLA models, and from 0.30 on caches none."""
    scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
    asked = scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens
    caches, block_size = cache.enable_prefix_caching, cache.block_size
    original(cls, vllm_config)
    model = vllm_config.model_config
    if model is not None and _ARCHITECTURE in model.architectures:
        scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens = asked
        cache.enable_prefix_caching = caches
        if cache.user_specified_block_size:
            cache.block_size = block_size


PATCHES: tuple[Patch, ...] = (wrap_check_and_update_config,)
