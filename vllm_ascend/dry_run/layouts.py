# SPDX-License-Identifier: Apache-2.0
"""KV cache layouts to replay on: one spec per attention layer, as the model would declare them.

Block counts are never typed in: vLLM's own grouping and sizing turn specs and memory into blocks.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

from vllm_ascend.core.checks.drafts import DSPARK
from vllm_ascend.core.layout import dsv4_layout as dsv4
from vllm_ascend.core.layout.dsv4_specs import Dsv4Specs, ascend_specs
from vllm_ascend.core.ring_tails.layout import ring_specs, with_rings
from vllm_ascend.releases import running_release

# DeepSeek-V4-Flash: two plain sliding-window layers, then C4 and C128 in turn, 43 in all.
_DSV4_FLASH_COMPRESS_RATIOS = (0, 0, *([4, 128] * 20), 4)
# Method of drafting -> the layers of the checkpoint that draft (DSpark's: ``n_mtp_layers``).
DRAFT_LAYERS = {"mtp": 1, DSPARK: 3}
_MODEL_VERSION = "deepseek_v4"
_GPU_ALIGNMENT_BYTES = 576  # FlashMLA
_GPU_BLOCK_TOKENS = 256
_GPU_WINDOW_BLOCK_TOKENS = 64
_GPU_INDEXER_ROW_BYTES = dsv4.INDEXER_HEAD_SIZE + 4  # fp8 keys and one fp32 scale


@dataclass(frozen=True)
class KVLayout:
    """The KV cache specs of a model.

    Attributes:
        name: How reports call it.
        block_size: ``--block-size`` in force (rows for Ascend's layout, tokens elsewhere).
        specs: Layer name -> spec, in registration order.
        rings: The same of compressor state that each request holds in rings, beside the pool.
    """

    name: str
    block_size: int
    specs: dict[str, KVCacheSpec]
    rings: dict[str, KVCacheSpec] = field(default_factory=dict)


def _by_layer(
    kinds: Dsv4Specs, compress_ratios: tuple[int, ...], num_draft_layers: int
) -> dict[str, KVCacheSpec]:
    """Name the specs as the model's layers register them."""
    specs: dict[str, KVCacheSpec] = {}
    for layer, ratio in enumerate(compress_ratios):
        prefix = f"model.layers.{layer}.attn"
        specs[f"{prefix}.swa_cache"] = kinds.window
        if ratio:
            specs[f"{prefix}.mla"] = kinds.mla[ratio]
            specs[f"{prefix}.compressor.state_cache"] = kinds.state[ratio]
        if ratio == dsv4.C4_RATIO:
            specs[f"{prefix}.indexer.k_cache"] = kinds.indexer
            specs[f"{prefix}.indexer.compressor.state_cache"] = kinds.indexer_state
    for layer in range(num_draft_layers):
        specs[f"mtp.{layer}.attn.swa_cache"] = kinds.window
    # An object per layer, as models have it: vLLM pads the pages of specs in place.
    return {name: copy.copy(spec) for name, spec in specs.items()}


def dsv4_flash_a3(
    block_size: int = 128,
    *,
    num_draft_layers: int = 1,
    compress_ratios: tuple[int, ...] = _DSV4_FLASH_COMPRESS_RATIOS,
) -> KVLayout:
    """DeepSeek-V4-Flash as vllm-ascend lays it out on A3.

    Args:
        block_size: Rows per compressed block: 32, 64 or 128.
        num_draft_layers: Layers of the drafts, see :data:`DRAFT_LAYERS`; each has a window alone.
        compress_ratios: One entry per layer (0, 4 or 128); shorter ones give small test layouts.
    """
    specs = _by_layer(ascend_specs(block_size), compress_ratios, num_draft_layers)
    return KVLayout("dsv4-flash-a3", block_size, specs)


def in_rings(layout: KVLayout) -> KVLayout:
    """Return a layout whose compressor state is in rings, a prototype (``docs/ring-tails.md``)."""
    return KVLayout(
        f"{layout.name}-rings",
        layout.block_size,
        with_rings(layout.specs),
        ring_specs(layout.specs),
    )


def dsv4_flash_gpu(
    *,
    num_draft_layers: int = 1,
    compress_ratios: tuple[int, ...] = _DSV4_FLASH_COMPRESS_RATIOS,
) -> KVLayout:
    """DeepSeek-V4-Flash as stock vLLM 0.20.2 lays it out on a GPU (fp8 pages, 256-token blocks)."""
    common: dict[str, Any] = {"num_kv_heads": 1, "alignment": _GPU_ALIGNMENT_BYTES}
    packed = {"cache_dtype_str": "fp8_ds_mla", "model_version": _MODEL_VERSION}
    row = {"head_size": dsv4.HEAD_SIZE, "dtype": torch.uint8, **packed, **common}

    def compressed(ratio: int, **row: Any) -> KVCacheSpec:
        per_row = {running_release().ratio_field: ratio}
        return MLAAttentionSpec(block_size=_GPU_BLOCK_TOKENS, **per_row, **row)

    def state(block_tokens: int, head_size: int, window: int) -> KVCacheSpec:
        return SlidingWindowMLASpec(
            block_size=block_tokens,
            head_size=dsv4.state_size(head_size, overlapping=window == dsv4.C4_STATE_WINDOW),
            dtype=torch.float32,
            sliding_window=window,
            **common,
        )

    kinds = Dsv4Specs(
        window=SlidingWindowMLASpec(
            block_size=_GPU_WINDOW_BLOCK_TOKENS, sliding_window=dsv4.SLIDING_WINDOW, **row
        ),
        mla={ratio: compressed(ratio, **row) for ratio in (dsv4.C4_RATIO, dsv4.C128_RATIO)},
        state={
            dsv4.C4_RATIO: state(4, dsv4.HEAD_SIZE, dsv4.C4_STATE_WINDOW),
            dsv4.C128_RATIO: state(8, dsv4.HEAD_SIZE, dsv4.C128_STATE_WINDOW),
        },
        # The indexer's keys are not packed as the model's rows are.
        indexer=compressed(
            dsv4.C4_RATIO, head_size=_GPU_INDEXER_ROW_BYTES, dtype=torch.uint8, **common
        ),
        indexer_state=state(4, dsv4.INDEXER_HEAD_SIZE, dsv4.C4_STATE_WINDOW),
    )
    return KVLayout(
        "dsv4-flash-gpu", _GPU_BLOCK_TOKENS, _by_layer(kinds, compress_ratios, num_draft_layers)
    )


def from_hf_config(path: Path, block_size: int = 16) -> KVLayout:
    """Any Hugging Face text model that mixes full and sliding-window attention.

    Args:
        path: A ``config.json`` or the folder that holds it.
        block_size: Tokens per block, the same in every layer.

    Raises:
        ValueError: The file is not such a config; the message names the file and the field.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config: dict[str, Any] = json.loads(file.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{file}: not a readable Hugging Face config.json ({error})") from error
    config = config.get("text_config", config)

    def field(name: str) -> Any:
        if config.get(name) is None:
            raise ValueError(f"{file}: field {name!r} is missing")
        return config[name]

    num_layers = int(field("num_hidden_layers"))
    heads = int(config.get("num_key_value_heads") or field("num_attention_heads"))
    head_size = int(
        config.get("head_dim") or field("hidden_size") // int(field("num_attention_heads"))
    )
    sliding_window = int(field("sliding_window"))
    types = config.get("layer_types")
    if types is None:
        pattern = int(field("sliding_window_pattern"))
        types = [
            "full_attention" if (layer + 1) % pattern == 0 else "sliding_attention"
            for layer in range(num_layers)
        ]
    if len(types) != num_layers:
        raise ValueError(f"{file}: layer_types has {len(types)} entries for {num_layers} layers")

    def spec(layer_type: str) -> KVCacheSpec:
        shape = dict(
            block_size=block_size, num_kv_heads=heads, head_size=head_size, dtype=torch.bfloat16
        )
        if layer_type == "full_attention":
            return FullAttentionSpec(**shape)
        if layer_type == "sliding_attention":
            return SlidingWindowSpec(**shape, sliding_window=sliding_window)
        raise ValueError(f"{file}: layer type {layer_type!r} is neither full nor sliding attention")

    specs = {f"model.layers.{layer}.attn": spec(kind) for layer, kind in enumerate(types)}
    name = str(config.get("model_type", file.parent.name))
    return KVLayout(name=name, block_size=block_size, specs=specs)
