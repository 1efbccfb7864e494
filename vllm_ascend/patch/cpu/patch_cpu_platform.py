# SPDX-License-Identifier: Apache-2.0
"""``vllm/platforms/cpu.py``: DeepSeek-V4 may be prefilled in chunks."""

from __future__ import annotations

from collections.abc import Callable

from vllm.config import VllmConfig
from vllm.platforms.cpu import CpuPlatform

from vllm_ascend.patch.features import DSV4_ON_CPU
from vllm_ascend.patch.table import Patch, changes

_ARCHITECTURE = "DeepseekV4ForCausalLM"


@changes("vllm.platforms.cpu:CpuPlatform.check_and_update_config", DSV4_ON_CPU)
def wrap_check_and_update_config(original: Callable) -> Callable:
    """vLLM turns chunked prefill off for every MLA model on the CPU and takes prompts whole,
    because its own CPU attention cannot read MLA rows back; ours reads pages."""

    def check_and_update_config(cls: type[CpuPlatform], vllm_config: VllmConfig) -> None:
        scheduler = vllm_config.scheduler_config
        asked = scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens
        original(cls, vllm_config)
        model = vllm_config.model_config
        if model is not None and _ARCHITECTURE in model.architectures:
            scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens = asked

    return check_and_update_config


PATCHES: tuple[Patch, ...] = (wrap_check_and_update_config,)
