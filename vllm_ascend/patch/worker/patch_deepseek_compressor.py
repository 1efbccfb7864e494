# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's cache layers on the NPU. Importing this module installs them.

vLLM's modules get the classes of :mod:`vllm_ascend.worker.dsv4_cache_layers` in the place of their
own.
"""

from __future__ import annotations

import vllm_ascend.patch.worker.installation  # noqa: F401 - installs the workers' patches
from vllm_ascend.patch.features import CHECKOUT_BLOCK_SIZE
from vllm_ascend.patch.installer import plan
from vllm_ascend.patch.table import Patch, Rebind
from vllm_ascend.worker.dsv4_cache_layers import (
    AscendCompressorStateCache,
    AscendDeepseekV4IndexerCache,
    AscendDeepseekV4SWACache,
)


def _cache_layer(target: str, layer: type, keepers: tuple[str, ...] = ()) -> Rebind:
    return Rebind(
        target=target,
        replacement=layer,
        keepers=keepers,
        **CHECKOUT_BLOCK_SIZE,
        why="The NPU stores rows its own way, in blocks of the configured size.",
    )


PATCHES: tuple[Patch, ...] = (
    _cache_layer(
        "vllm.model_executor.layers.deepseek_compressor:CompressorStateCache",
        AscendCompressorStateCache,
    ),
    _cache_layer(
        "vllm.model_executor.layers.deepseek_v4_attention:DeepseekV4IndexerCache",
        AscendDeepseekV4IndexerCache,
    ),
    _cache_layer(
        "vllm.v1.attention.backends.mla.sparse_swa:DeepseekV4SWACache",
        AscendDeepseekV4SWACache,
        # vLLM's own attention layer, which the NPU's model does without.
        keepers=("vllm.model_executor.layers.deepseek_v4_attention:DeepseekV4SWACache",),
    ),
)

plan(PATCHES).install()
