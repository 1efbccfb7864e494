# SPDX-License-Identifier: Apache-2.0
"""Which operators there are, and under which names vllm-ascend calls them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.upstream.npu_reference import (
    attention,
    compressor,
    compressor_metadata,
    experts,
    hyper_connections,
    indexer,
    norms,
    projections,
    quantization,
    quantized_experts,
    rotary,
    routing,
    scatter,
)


def _by_name(*functions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {function.__name__: function for function in functions}


# torch_npu's functions.
TORCH_NPU = _by_name(
    experts.npu_grouped_matmul,
    experts.npu_moe_token_unpermute,
    experts.npu_swiglu,
    norms.npu_rms_norm,
    projections._npu_matmul_add_fp32,
    projections.npu_format_cast,
    projections.npu_transpose_batchmatmul,
    quantization.npu_dynamic_quant,
    quantization.npu_quant_matmul,
    rotary.npu_rotary_mul,
)
# By another name in later releases.
TORCH_NPU["npu_moe_init_routing_v2"] = experts.npu_moe_init_routing_custom
# torch.ops._C_ascend's; their signatures are the release's own.
C_ASCEND = _by_name(
    attention.npu_sparse_attn_sharedkv,
    attention.npu_sparse_attn_sharedkv_metadata,
    compressor.compressor,
    compressor_metadata.compressor_metadata,
    compressor_metadata.compressor_metadata_out,
    experts.npu_moe_init_routing_custom,
    hyper_connections.npu_hc_post,
    hyper_connections.npu_hc_pre,
    indexer.npu_quant_lightning_indexer,
    indexer.npu_quant_lightning_indexer_metadata,
    indexer.npu_quant_lightning_indexer_v2,
    norms.npu_add_rms_norm_bias,
    norms.npu_rms_norm_cast,
    norms.npu_rms_norm_dynamic_quant,
    quantized_experts.grouped_matmul_swiglu_quant_weight_nz,
    quantized_experts.npu_dequant_swiglu_quant,
    rotary.inplace_partial_rotary_mul,
    routing.moe_gating_top_k_hash,
    scatter.npu_scatter_nd_update_v2,
)
# The same by other names: fused, or renamed.
C_ASCEND |= {
    "npu_hc_pre_v2": hyper_connections.npu_hc_pre,
    "npu_quant_lightning_indexer_v2_metadata": indexer.npu_quant_lightning_indexer_metadata,
    "npu_scatter_nd_update_sk": scatter.npu_scatter_nd_update_v2,
    "npu_vllm_quant_lightning_indexer": indexer.npu_quant_lightning_indexer,
    "npu_vllm_quant_lightning_indexer_metadata": indexer.npu_quant_lightning_indexer_metadata,
}

_DEFINITION = re.compile(r'ops\.def\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
_LIBRARIES: list[torch.library.Library] = []


def read_schemas(torch_binding: Path) -> list[str]:
    """Return the signatures of a release's operators, as torch reads them."""
    text = re.sub(r"//[^\n]*", "", torch_binding.read_text(encoding="utf-8"))
    schemas = []
    for match in _DEFINITION.finditer(text):
        parts = re.findall(r'"((?:[^"\\]|\\.)*)"', match[1])
        schemas.append("".join(parts).replace('\\"', '"'))
    return schemas


def register(torch_binding: Path) -> None:
    """Define all operators of a release, and let those that are written here run on the CPU."""
    library = torch.library.Library("_C_ascend", "DEF")
    _LIBRARIES.append(library)
    defined = set()
    for schema in read_schemas(torch_binding):
        # Some of other models' operators have signatures that this torch cannot read.
        with contextlib.suppress(RuntimeError):
            defined.add(library.define(schema))
    for name in C_ASCEND.keys() & defined:
        library.impl(name, C_ASCEND[name], "CompositeExplicitAutograd")
