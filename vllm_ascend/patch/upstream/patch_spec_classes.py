# SPDX-License-Identifier: Apache-2.0
"""vLLM's names for Ascend's spec classes, which vllm-ascend's modules read at run time.

Beside plain vLLM nothing needs them: a layer's spec is made by its model, which knows the class.
"""

from __future__ import annotations

from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec, AscendSlidingWindowMLASpec
from vllm_ascend.patch.features import CHECKOUT_SPECS
from vllm_ascend.patch.table import Patch, Rebind

_MLA_DIGEST = "9f27c636faca79dd"
_WINDOW_DIGEST = "7feb3df068e09b2f"


def _rebind(target: str, spec: type, upstream_sha256: str) -> Rebind:
    return Rebind(
        target=target,
        replacement=spec,
        upstream_sha256=upstream_sha256,
        **CHECKOUT_SPECS,
        why="vllm-ascend's runner and schedulers take the class by vLLM's name, and pass and read "
        "what only Ascend's has.",
    )


PATCHES: tuple[Patch, ...] = (
    _rebind("vllm.v1.kv_cache_interface:MLAAttentionSpec", AscendMLAAttentionSpec, _MLA_DIGEST),
    _rebind(
        "vllm.v1.kv_cache_interface:SlidingWindowMLASpec",
        AscendSlidingWindowMLASpec,
        _WINDOW_DIGEST,
    ),
    _rebind(
        "vllm.model_executor.layers.attention.mla_attention:MLAAttentionSpec",
        AscendMLAAttentionSpec,
        _MLA_DIGEST,
    ),
)
