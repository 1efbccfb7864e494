# SPDX-License-Identifier: Apache-2.0
"""Small KV cache layouts: real spec classes, few layers, blocks short enough to fill quickly."""

from __future__ import annotations

import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

from vllm_ascend.core.layout.dsv4_specs import compressed_spec
from vllm_ascend.dry_run.layouts import KVLayout
from vllm_ascend.releases import running_release

_PAGE_BYTES = 4096


def _attention(block_size: int) -> dict:
    return {
        "block_size": block_size,
        "num_kv_heads": 1,
        "head_size": 8,
        "dtype": torch.bfloat16,
    }


def full_only(block_size: int = 4) -> KVLayout:
    """One group of full attention."""
    specs: dict[str, KVCacheSpec] = {
        f"layers.{i}": FullAttentionSpec(**_attention(block_size)) for i in range(2)
    }
    return KVLayout("full", block_size, specs)


def gemma_like(block_size: int = 4, window: int = 9) -> KVLayout:
    """Three sliding-window layers for every full one, equal block sizes."""
    specs: dict[str, KVCacheSpec] = {}
    for i in range(4):
        shape = _attention(block_size)
        specs[f"layers.{i}"] = (
            FullAttentionSpec(**shape)
            if i % 4 == 3
            else SlidingWindowSpec(**shape, sliding_window=window)
        )
    return KVLayout("gemma-like", block_size, specs)


def chunked_local(block_size: int = 4, chunk: int = 16) -> KVLayout:
    """Llama-4-like: chunked local attention and full attention."""
    specs: dict[str, KVCacheSpec] = {}
    for i in range(4):
        shape = _attention(block_size)
        specs[f"layers.{i}"] = (
            FullAttentionSpec(**shape)
            if i % 4 == 3
            else ChunkedLocalAttentionSpec(**shape, attention_chunk_size=chunk)
        )
    return KVLayout("chunked-local", block_size, specs)


def mamba_hybrid(block_size: int = 16, num_speculative_blocks: int = 0) -> KVLayout:
    """Full attention and Mamba states kept at block boundaries (align mode)."""
    full = FullAttentionSpec(**_attention(block_size))
    mamba = MambaSpec(
        block_size=block_size,
        shapes=((4, 8),),
        dtypes=(torch.bfloat16,),
        page_size_padded=full.page_size_bytes,
        mamba_type="mamba2",
        mamba_cache_mode="align",
        num_speculative_blocks=num_speculative_blocks,
    )
    specs: dict[str, KVCacheSpec] = {"layers.0": full, "layers.1": mamba, "layers.2": mamba}
    return KVLayout("mamba-hybrid", block_size, specs)


def dsv4_stock_tiny(*, mtp: bool = False) -> KVLayout:
    """The shape of DeepSeek-V4 in stock vLLM, with ratios 4 and 16 and blocks of 32 tokens."""

    def compressed(ratio: int) -> KVCacheSpec:
        return MLAAttentionSpec(
            block_size=32,
            num_kv_heads=1,
            head_size=_PAGE_BYTES // (32 // ratio) // (1 if ratio == 4 else 4),
            dtype=torch.uint8,
            **{running_release().ratio_field: ratio},
        )

    def windowed(block_size: int, window: int, dtype: torch.dtype) -> KVCacheSpec:
        row_bytes = _PAGE_BYTES // block_size
        return SlidingWindowMLASpec(
            block_size=block_size,
            num_kv_heads=1,
            head_size=row_bytes // dtype.itemsize,
            dtype=dtype,
            sliding_window=window,
            # Only the attention windows carry a model version in the real layout as well.
            model_version=None,
        )

    specs: dict[str, KVCacheSpec] = {}
    for i, ratio in enumerate((0, 4, 16, 4)):
        specs[f"layers.{i}.swa"] = windowed(8, 16, torch.uint8)
        if ratio:
            specs[f"layers.{i}.mla"] = compressed(ratio)
            window = 8 if ratio == 4 else ratio
            specs[f"layers.{i}.state"] = windowed(4 if ratio == 4 else 2, window, torch.float32)
    if mtp:
        specs["mtp.0.swa"] = windowed(8, 16, torch.uint8)
    return KVLayout("dsv4-stock-tiny", 32, specs)


def dsv4_rows_tiny(*, mtp: bool = False) -> KVLayout:
    """The shape of DeepSeek-V4 on Ascend, with ratios 4 and 16 and blocks of 4 rows.

    Tokens per block: C4 16, C16 64, window 4, states 2 and 4; the alignment is 64 tokens.
    """
    from vllm_ascend.core.kv_cache_interface import AscendSlidingWindowMLASpec

    def compressed(ratio: int) -> KVCacheSpec:
        return compressed_spec(
            4,
            ratio,
            num_kv_heads=1,
            head_size=_PAGE_BYTES // 4 // 2,
            dtype=torch.bfloat16,
            model_version="deepseek_v4",
        )

    def windowed(block_size: int, window: int, dtype: torch.dtype) -> KVCacheSpec:
        return AscendSlidingWindowMLASpec(
            block_size=block_size,
            num_kv_heads=1,
            head_size=_PAGE_BYTES // block_size // dtype.itemsize,
            dtype=dtype,
            sliding_window=window,
        )

    specs: dict[str, KVCacheSpec] = {}
    for i, ratio in enumerate((0, 4, 16, 4)):
        specs[f"layers.{i}.swa"] = windowed(4, 16, torch.bfloat16)
        if ratio:
            specs[f"layers.{i}.mla"] = compressed(ratio)
            window = 8 if ratio == 4 else ratio
            specs[f"layers.{i}.state"] = windowed(2 if ratio == 4 else 4, window, torch.float32)
    if mtp:
        specs["mtp.0.swa"] = windowed(4, 16, torch.bfloat16)
    return KVLayout("dsv4-rows-tiny", 4, specs)


def fine_full(full_block: int = 4, window_block: int = 8, window: int = 24) -> KVLayout:
    """Full attention whose blocks are finer than the window's, and so than a granule."""
    specs: dict[str, KVCacheSpec] = {
        "layers.0": FullAttentionSpec(**_attention(full_block)),
        "layers.1": SlidingWindowSpec(
            **_attention(window_block) | {"head_size": 4}, sliding_window=window
        ),
    }
    return KVLayout("fine-full", full_block, specs)
