# SPDX-License-Identifier: Apache-2.0
"""The KV cache specs of a DeepSeek-V4 model as Ascend lays it out, at any size of model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.utils.torch_utils import get_dtype_size
from vllm.v1.kv_cache_interface import KVCacheSpec, MLAAttentionSpec

from vllm_ascend.core.kv_cache_interface import AscendSlidingWindowMLASpec
from vllm_ascend.core.layout import dsv4_layout as layout
from vllm_ascend.core.layout.specs import AscendMLATokenSpec
from vllm_ascend.deployment import is_over_checkout

_MODEL_VERSION = "deepseek_v4"
_INT8_WITH_SCALE = {"dtype": torch.int8, "scale_dim": 1, "scale_dtype": torch.float16}


@dataclass(frozen=True)
class Dsv4Model:
    """The sizes of a model that decide the size of its rows; DeepSeek-V4-Flash's by default."""

    head_size: int = layout.HEAD_SIZE  # elements of a window row and of a compressed row
    indexer_head_size: int = layout.INDEXER_HEAD_SIZE  # elements of an indexer key
    sliding_window: int = layout.SLIDING_WINDOW  # tokens of every layer's window
    dtype: torch.dtype = torch.bfloat16  # of window rows and compressed rows
    # How an indexer key is stored, as fields of the spec.
    indexer_row: Mapping[str, Any] = field(default_factory=lambda: _INT8_WITH_SCALE)


@dataclass(frozen=True)
class Dsv4Specs:
    """The kinds of cache that DeepSeek-V4's layers have."""

    window: KVCacheSpec  # of every layer
    mla: Mapping[int, KVCacheSpec]  # compression ratio -> compressed rows
    state: Mapping[int, KVCacheSpec]  # compression ratio -> the compressor's state
    indexer: KVCacheSpec  # the C4 indexer's keys
    indexer_state: KVCacheSpec  # the state of the indexer's own compressor


def ascend_specs(rows: int, model: Dsv4Model | None = None) -> Dsv4Specs:
    """Return the specs for compressed blocks of ``rows`` rows.

    Raises:
        ValueError: See :func:`vllm_ascend.core.layout.dsv4_layout.dsv4_block_sizes`.
    """
    model = model or Dsv4Model()
    sizes = layout.dsv4_block_sizes(rows)

    def compressed(ratio: int, head_size: int, **row: Any) -> KVCacheSpec:
        return compressed_spec(
            sizes.compressed,
            ratio,
            num_kv_heads=1,
            model_version=_MODEL_VERSION,
            head_size=head_size,
            **row,
        )

    def state(ratio: int, head_size: int, page_bytes: int) -> KVCacheSpec:
        is_c4 = ratio == layout.C4_RATIO
        return AscendSlidingWindowMLASpec(
            block_size=sizes.c4_state if is_c4 else sizes.c128_state,
            num_kv_heads=1,
            head_size=layout.state_size(head_size, overlapping=is_c4),
            dtype=torch.float32,
            sliding_window=layout.C4_STATE_WINDOW if is_c4 else layout.C128_STATE_WINDOW,
            page_size_padded=page_bytes,
        )

    ratios = (layout.C4_RATIO, layout.C128_RATIO)
    mla = {ratio: compressed(ratio, model.head_size, dtype=model.dtype) for ratio in ratios}
    indexer = compressed(layout.C4_RATIO, model.indexer_head_size, **model.indexer_row)
    return Dsv4Specs(
        window=AscendSlidingWindowMLASpec(
            block_size=sizes.swa,
            num_kv_heads=1,
            head_size=model.head_size,
            dtype=model.dtype,
            sliding_window=model.sliding_window,
            model_version=_MODEL_VERSION,
        ),
        mla=mla,
        state={r: state(r, model.head_size, mla[r].page_size_bytes) for r in ratios},
        indexer=indexer,
        indexer_state=state(layout.C4_RATIO, model.indexer_head_size, indexer.page_size_bytes),
    )


def compressed_spec(rows: int, ratio: int, **row: Any) -> KVCacheSpec:
    """Return vllm-ascend's spec of blocks of ``rows`` rows, ``ratio`` tokens each.

    Args:
        **row: Fields of the spec that vllm-ascend calls ``AscendMLAAttentionSpec``.
    """
    counts_rows = "compress_ratio" in MLAAttentionSpec.__dataclass_fields__
    if counts_rows or is_over_checkout():
        from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec

        if counts_rows:
            return AscendMLAAttentionSpec(block_size=rows, compress_ratio=ratio, **row)
        # vLLM's own specs of this release count tokens, and vllm-ascend's follow them.
        return AscendMLAAttentionSpec(block_size=rows * ratio, tokens_per_state=ratio, **row)
    scale_dim, scale_dtype = row.pop("scale_dim", 0), row.pop("scale_dtype", None)
    row_bytes = row["head_size"] * get_dtype_size(row["dtype"])
    if scale_dim:
        row_bytes += scale_dim * get_dtype_size(scale_dtype)
    return AscendMLATokenSpec(
        block_size=rows * ratio, tokens_per_state=ratio, state_content_bytes=row_bytes, **row
    )
