# SPDX-License-Identifier: Apache-2.0
"""vLLM's names for Ascend's spec classes, which vllm-ascend's modules read at run time.

Beside plain vLLM nothing needs them: a layer's spec is made by its model, which knows the class.
"""

from __future__ import annotations

from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec, AscendSlidingWindowMLASpec
from vllm_ascend.patch.features import CHECKOUT_SPECS
from vllm_ascend.patch.table import Patch, Rebind

# They ask what a spec is, which a subclass answers as well, or make those of other models.
_KEEPERS_OF_BOTH = (
    "vllm.v1.core.kv_cache_utils",
    "vllm.v1.core.single_type_kv_cache_manager",
    "vllm.v1.attention.backends.mla.sparse_swa",
    "vllm.model_executor.layers.deepseek_compressor",
)
_KEEPERS_OF_MLA = (
    *_KEEPERS_OF_BOTH,
    "vllm.v1.attention.backends.mla.indexer",
    "vllm.model_executor.layers.deepseek_v4_attention",
    "vllm.model_executor.models.deepseek_v2",
    "vllm.model_executor.models.extract_hidden_states",
)
_SPECS = {
    "MLAAttentionSpec": (AscendMLAAttentionSpec, _KEEPERS_OF_MLA),
    "SlidingWindowMLASpec": (AscendSlidingWindowMLASpec, _KEEPERS_OF_BOTH),
}


def _rebind(module: str, name: str) -> Rebind:
    spec, keepers = _SPECS[name]
    return Rebind(
        target=f"{module}:{name}",
        replacement=spec,
        keepers=tuple(f"{keeper}:{name}" for keeper in keepers),
        **CHECKOUT_SPECS,
        why="vllm-ascend takes the class by vLLM's name, but needs Ascend's fields.",
    )


PATCHES: tuple[Patch, ...] = (
    _rebind("vllm.v1.kv_cache_interface", "MLAAttentionSpec"),
    _rebind("vllm.v1.kv_cache_interface", "SlidingWindowMLASpec"),
    _rebind("vllm.model_executor.layers.attention.mla_attention", "MLAAttentionSpec"),
)
