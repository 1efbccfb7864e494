# SPDX-License-Identifier: Apache-2.0
"""KV cache layouts as plain data: any mixture of groups, of any sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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

from tests.e2e.core.configurations import FEW_LAYERS
from tests.soak.names import DSV4_STOCK, FLASH_A3, FLASH_GPU, HYBRID
from vllm_ascend.core.layout.dsv4_specs import compressed_spec
from vllm_ascend.dry_run.layouts import KVLayout, dsv4_flash_a3, dsv4_flash_gpu
from vllm_ascend.releases import running_release

# Every page has as many bytes, whatever the block size.
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Layer:
    """One or more layers that cache alike.

    Attributes:
        kind: `full`, `sliding`, `chunked`, `mamba`; of DeepSeek-V4 `window`, or `compressed`, which
            brings the state of its compressor.
        block_size: rows per block; in stock vLLM's compressed layers the tokens of a block.
        window: of `sliding`, `chunked` and `window`, in tokens.
        ratio: of `compressed`: tokens per row.
        state_block_size: of `compressed`: rows per block of the compressor's state.
        count: layers.
    """

    kind: str
    block_size: int
    window: int = 0
    ratio: int = 0
    state_block_size: int = 0
    count: int = 1

    def __str__(self) -> str:
        details = {"window": self.window, "ratio": self.ratio, "state block": self.state_block_size}
        known = "".join(f", {name} {value}" for name, value in details.items() if value)
        times = f"{self.count} x " if self.count > 1 else ""
        return f"{times}{self.kind} (block {self.block_size}{known})"


@dataclass(frozen=True)
class LayoutRecipe:
    """What a layout is built from.

    Attributes:
        family: `hybrid`, `dsv4-stock`, `dsv4-rows`, or DeepSeek-V4-Flash's own sizes: `flash-a3`
            and `flash-gpu`.
        block_size: `--block-size`.
        layers: of the first three families.
        mtp: whether a DeepSeek-V4 has its draft layer.
    """

    family: str
    block_size: int
    layers: tuple[Layer, ...] = ()
    mtp: bool = False

    def __str__(self) -> str:
        layers = "".join(f"\n    {layer}" for layer in self.layers)
        return f"{self.family}, --block-size {self.block_size}{', MTP' * self.mtp}{layers}"

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of its layers."""
        return frozenset(layer.kind for layer in self.layers)

    def build(self) -> KVLayout:
        """The specs. Ascend's need the project's patches."""
        if self.family == FLASH_A3:
            return dsv4_flash_a3(
                self.block_size, num_draft_layers=int(self.mtp), compress_ratios=FEW_LAYERS
            )
        if self.family == FLASH_GPU:
            return dsv4_flash_gpu(num_draft_layers=int(self.mtp), compress_ratios=FEW_LAYERS)
        if self.family == HYBRID:
            specs = _hybrid(self.layers)
        else:
            specs = _dsv4(self.layers, _stock if self.family == DSV4_STOCK else _rows, self.mtp)
        return KVLayout(self.family, self.block_size, specs)


def _hybrid(layers: tuple[Layer, ...]) -> dict[str, KVCacheSpec]:
    specs: dict[str, KVCacheSpec] = {}
    for layer in layers:
        for _ in range(layer.count):
            specs[f"layers.{len(specs)}"] = _attention(layer)
    return specs


def _attention(layer: Layer) -> KVCacheSpec:
    if layer.kind == "mamba":
        return MambaSpec(
            block_size=layer.block_size,
            shapes=((4, 8),),
            dtypes=(torch.bfloat16,),
            page_size_padded=_PAGE_BYTES,
            mamba_type="mamba2",
            mamba_cache_mode="align",
        )
    shape = {
        "block_size": layer.block_size,
        "num_kv_heads": 1,
        # Keys and values.
        "head_size": _PAGE_BYTES // layer.block_size // torch.bfloat16.itemsize // 2,
        "dtype": torch.bfloat16,
    }
    if layer.kind == "sliding":
        return SlidingWindowSpec(**shape, sliding_window=layer.window)
    if layer.kind == "chunked":
        return ChunkedLocalAttentionSpec(**shape, attention_chunk_size=layer.window)
    return FullAttentionSpec(**shape)


def _stock(layer: Layer, *, is_first: bool) -> tuple[KVCacheSpec, type[SlidingWindowMLASpec]]:
    """A compressed layer of stock vLLM, whose blocks count tokens."""
    rows = layer.block_size // max(layer.ratio, 1)
    spec = MLAAttentionSpec(
        block_size=layer.block_size,
        num_kv_heads=1,
        head_size=_PAGE_BYTES // rows // (1 if is_first else 4),
        dtype=torch.uint8,
        **{running_release().ratio_field: layer.ratio},
    )
    return spec, SlidingWindowMLASpec


def _rows(layer: Layer, *, is_first: bool) -> tuple[KVCacheSpec, type[SlidingWindowMLASpec]]:
    """A compressed layer of Ascend's, whose blocks count rows."""
    from vllm_ascend.patch.platform.patch_kv_cache_interface import AscendSlidingWindowMLASpec

    spec = compressed_spec(
        layer.block_size,
        layer.ratio,
        num_kv_heads=1,
        head_size=_PAGE_BYTES // layer.block_size // torch.bfloat16.itemsize,
        dtype=torch.bfloat16,
        model_version="deepseek_v4",
    )
    return spec, AscendSlidingWindowMLASpec


def _dsv4(layers: tuple[Layer, ...], make: Callable, mtp: bool) -> dict[str, KVCacheSpec]:
    """A window in every layer; behind the first one a compressor, with its rows and its state."""
    window = next(layer for layer in layers if layer.kind == "window")
    compressed = [layer for layer in layers if layer.kind == "compressed"]
    _, sliding = make(compressed[0], is_first=True)
    # Stock pages are bytes; Ascend's hold the model's own numbers.
    row_dtype = torch.uint8 if sliding is SlidingWindowMLASpec else torch.bfloat16

    def windowed(block_size: int, tokens: int, dtype: torch.dtype) -> KVCacheSpec:
        return sliding(
            block_size=block_size,
            num_kv_heads=1,
            head_size=_PAGE_BYTES // block_size // dtype.itemsize,
            dtype=dtype,
            sliding_window=tokens,
            # Only the attention windows carry a model version in the real layout as well.
            model_version=None,
        )

    specs: dict[str, KVCacheSpec] = {
        "layers.0.swa": windowed(window.block_size, window.window, row_dtype)
    }
    repeated = [layer for layer in compressed for _ in range(layer.count)]
    for i, layer in enumerate(repeated, 1):
        specs[f"layers.{i}.swa"] = windowed(window.block_size, window.window, row_dtype)
        specs[f"layers.{i}.mla"], _ = make(layer, is_first=layer is compressed[0])
        # The compressor of ratio 4 overlaps its windows.
        tokens = 8 if layer.ratio == 4 else layer.ratio
        specs[f"layers.{i}.state"] = windowed(layer.state_block_size, tokens, torch.float32)
    if mtp:
        specs["mtp.0.swa"] = windowed(window.block_size, window.window, row_dtype)
    return specs
