# SPDX-License-Identifier: Apache-2.0
"""From a model's configuration to the KV caches that its layers would declare."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.core.layout.block_sizes import dsv4_compressed_block_size
from vllm_ascend.core.layout.dsv4_specs import Dsv4Model, Dsv4Specs, ascend_specs
from vllm_ascend.doctor.model_config import DSV4
from vllm_ascend.dry_run import layouts
from vllm_ascend.dry_run.layouts import KVLayout
from vllm_ascend.prefix_cache_config import load_config

_RATIO_OF_LAYER_TYPE = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
# vLLM's where nothing says otherwise; vllm-ascend's.
_DEFAULT_BLOCK_TOKENS = 16
_ASCEND_BLOCK_TOKENS = 128


def model_layout(
    path: Path, fields: dict[str, Any], block_size: int | None, *, num_draft_layers: int
) -> KVLayout:
    """Return the KV caches of a model's layers.

    Args:
        path: Where its configuration lies.
        fields: What it says.
        block_size: ``--block-size``, if given.
        num_draft_layers: Layers that draft, which are served, too.

    Raises:
        BadInputError: The model's layers are of a kind that is not known here.
        ValueError: ``block_size`` and the environment contradict each other, or the model.
    """
    if fields["model_type"] == DSV4:
        return _dsv4_layout(fields, block_size, num_draft_layers=num_draft_layers)
    on_ascend = current_platform.is_out_of_tree()
    tokens = block_size or (_ASCEND_BLOCK_TOKENS if on_ascend else _DEFAULT_BLOCK_TOKENS)
    if not _has_windows(fields):
        return _full_attention_layout(fields, tokens)
    try:
        return layouts.from_hf_config(path, tokens)
    except ValueError as error:
        raise BadInputError(f"--model {error}") from error


def _has_windows(fields: dict[str, Any]) -> bool:
    types = fields.get("layer_types")
    if types is not None:
        return any(kind != "full_attention" for kind in types)
    return bool(fields.get("sliding_window")) and fields.get("use_sliding_window") is not False


def _full_attention_layout(fields: dict[str, Any], tokens: int) -> KVLayout:
    try:
        heads = int(fields["num_attention_heads"])
        shape = {
            "block_size": tokens,
            "num_kv_heads": int(fields.get("num_key_value_heads") or heads),
            "head_size": int(fields.get("head_dim") or fields["hidden_size"] // heads),
            "dtype": torch.bfloat16,
        }
    except KeyError as error:
        raise BadInputError(f"--model: its config.json lacks {error}") from error
    specs: dict[str, KVCacheSpec] = {
        f"model.layers.{layer}.attn": FullAttentionSpec(**shape)
        for layer in range(int(fields["num_hidden_layers"]))
    }
    return KVLayout(str(fields["model_type"]), tokens, specs)


def _dsv4_layout(
    fields: dict[str, Any], block_size: int | None, *, num_draft_layers: int
) -> KVLayout:
    ratios = _compress_ratios(fields)
    if current_platform.is_cuda_alike():
        return replace(
            layouts.dsv4_flash_gpu(num_draft_layers=num_draft_layers, compress_ratios=ratios),
            name=DSV4,
        )
    cache_config = None if block_size is None else CacheConfig(block_size=block_size)
    rows = dsv4_compressed_block_size(load_config(), cache_config)
    flash = layouts.dsv4_flash_a3(rows, num_draft_layers=num_draft_layers, compress_ratios=ratios)
    sizes = dict(
        zip(_kinds(ascend_specs(rows)), _kinds(ascend_specs(rows, _row_sizes(fields))), strict=True)
    )
    specs = {name: copy.copy(sizes[spec]) for name, spec in flash.specs.items()}
    return KVLayout(DSV4, rows, specs)


def _compress_ratios(fields: dict[str, Any]) -> tuple[int, ...]:
    """Return every layer's ratio (0, 4 or 128), from what DeepSeek or Hugging Face publish."""
    num_layers = int(fields["num_hidden_layers"])
    ratios = fields.get("compress_ratios")
    if ratios is None and fields.get("layer_types") is not None:
        ratios = [_RATIO_OF_LAYER_TYPE.get(kind, -1) for kind in fields["layer_types"]]
    # Entries behind the last layer are its MTP layers'.
    ratios = tuple(ratios or ())[:num_layers]
    if len(ratios) != num_layers or not set(ratios) <= set(_RATIO_OF_LAYER_TYPE.values()):
        raise BadInputError(
            f"--model: compress_ratios must name 0, 4 or 128 for each of the {num_layers} layers"
        )
    return ratios


def _row_sizes(fields: dict[str, Any]) -> Dsv4Model:
    flash = Dsv4Model()
    on_cpu: dict[str, Any] = {}
    if current_platform.is_cpu():
        # This project's own model, for which everything is stored in the dtype that is served.
        dtype = torch.float32 if fields.get("dtype") == "float32" else torch.bfloat16
        on_cpu = {"dtype": dtype, "indexer_row": {"dtype": dtype}}
    return Dsv4Model(
        head_size=int(fields.get("head_dim") or flash.head_size),
        indexer_head_size=int(fields.get("index_head_dim") or flash.indexer_head_size),
        sliding_window=int(fields.get("sliding_window") or flash.sliding_window),
        **on_cpu,
    )


def _kinds(specs: Dsv4Specs) -> tuple[KVCacheSpec, ...]:
    mla, state = specs.mla.values(), specs.state.values()
    return (specs.window, *mla, *state, specs.indexer, specs.indexer_state)
