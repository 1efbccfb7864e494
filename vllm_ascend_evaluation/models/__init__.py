# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4 on the CPU: the reference data plane behind the prefix cache.

What is not KV cache is Hugging Face transformers' own code; what is, is paged here.
"""

from __future__ import annotations

# Here, where vLLM loads the plugin: if it cannot be imported, vLLM logs that and serves on. What
# the function raises would end the engine.
import vllm_ascend  # noqa: F401

_MODELS = {
    "DeepseekV4ForCausalLM": "vllm_ascend_evaluation.models.deepseek_v4:DeepseekV4ForCausalLM",
    "DeepSeekV4MTPModel": "vllm_ascend_evaluation.models.deepseek_v4_mtp:DeepSeekV4MTP",
}


def register_cpu_models() -> None:
    """Let vLLM find our DeepSeek-V4 where the platform is the CPU; elsewhere do nothing.

    vLLM's own needs GPU kernels. Idempotent; the model's code is imported when it is served.

    Raises:
        PatchError: The running vLLM is not the one that the model was written for.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.models.registry import ModelRegistry

    import vllm_ascend_evaluation.models.patches  # noqa: F401 - importing them installs the patches

    for architecture, model_class in _MODELS.items():
        ModelRegistry.models.pop(architecture, None)  # or vLLM warns of the replacement
        ModelRegistry.register_model(architecture, model_class)
