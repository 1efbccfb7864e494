# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny model as DeepSeek publishes it, which is what vllm-ascend's loader reads.

Transformers saves nearly those names; the MTP layer of the tiny model has the names of its modules.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_MAIN = ((r"\.attn\.norm\.", ".attn.kv_norm."), (r"\.hc_head\.hc_", ".hc_head_"))
_MTP = (
    (r"\.block\.(attn|ffn)_hc\.", r".hc_\1_"),
    (r"\.hc_head\.hc_", ".hc_head_"),
    (r"\.block\.input_layernorm\.", ".attn_norm."),
    (r"\.block\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.block\.mlp\.", ".ffn."),
    (r"\.block\.self_attn\.", ".attn."),
    (r"\.e_score_correction_bias$", ".bias"),
    (r"\.shared_experts\.gate_proj\.", ".shared_experts.w1."),
    (r"\.shared_experts\.down_proj\.", ".shared_experts.w2."),
    (r"\.shared_experts\.up_proj\.", ".shared_experts.w3."),
    (r"\.kv_proj\.", ".wkv."),
    (r"\.o_(a|b)_proj\.", r".wo_\1."),
    (r"\.q_(a|b)_proj\.", r".wq_\1."),
    (r"\.q_a_norm\.", ".q_norm."),
    (r"\.sinks$", ".attn_sink"),
)
# Rotary embeddings are not stretched: a factor of 1, over more positions than tests use.
_ROPE = {
    "rope_type": "yarn",
    "factor": 1,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32,
    "beta_slow": 1,
}
# Weights that are int8 in a W8A8 checkpoint.
_W8A8 = re.compile(
    r"layers\.\d+\.(attn\.(wq_a|wq_b|wkv|wo_b|indexer\.wq_b)|ffn\.(shared_)?experts\..*w[123])"
    r"\.weight$"
)


def publish(tiny: Path, folder: Path, **changes: Any) -> Path:
    """Write the tiny model of a folder as a published checkpoint.

    Args:
        tiny: What ``python -m vllm_ascend tiny-model`` wrote.
        folder: Where to.
        changes: Fields of the configuration that differ.

    Returns:
        ``folder``.
    """
    folder.mkdir(parents=True)
    for file in tiny.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    main = _renamed(load_file(tiny / "model.safetensors"), _MAIN)
    mtp = _renamed(_one_by_one(load_file(tiny / "mtp.safetensors")), _MTP)
    # The draft has an embedding and a head of its own in the file; both are the target's.
    mtp["mtp.0.emb.tok_emb.weight"] = main["model.embed_tokens.weight"].clone()
    mtp["mtp.0.head.weight"] = main["head.weight"].clone()
    save_file(main, folder / "model.safetensors")
    save_file(mtp, folder / "mtp.safetensors")
    config = json.loads((tiny / "config.json").read_text(encoding="utf-8"))
    config |= {"max_position_embeddings": 16384, "rope_scaling": _ROPE} | changes
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return folder


def publish_w8a8(published: Path, folder: Path) -> Path:
    """Write a published checkpoint in int8 with a scale for each row, as ModelSlim does.

    Quantised is what is in DeepSeek-V4-Flash's W8A8: the projections of attention and of the
    indexer's queries, and all experts, but for those of the MTP layer.

    Args:
        published: What :func:`publish` wrote.
        folder: Where to.

    Returns:
        ``folder``.
    """
    shutil.copytree(published, folder)
    description: dict[str, str] = {"model_quant_type": "W8A8_DYNAMIC"}
    for file in sorted(folder.glob("*.safetensors")):
        tensors = {}
        for name, tensor in load_file(file).items():
            if not _W8A8.search(name):
                tensors[name] = tensor
                description[name] = "FLOAT"
                continue
            scale = tensor.float().abs().amax(1, keepdim=True) / 127
            tensors[name] = (tensor / scale).round().to(torch.int8)
            tensors[f"{name}_scale"] = scale
            tensors[f"{name}_offset"] = torch.zeros_like(scale)
            description |= dict.fromkeys((name, f"{name}_scale", f"{name}_offset"), "W8A8_DYNAMIC")
        save_file(tensors, file)
    # vllm-ascend looks for DeepSeek's own names, those without "model.", where it finds this one.
    description = {name.removeprefix("model."): kind for name, kind in description.items()}
    told = json.dumps(description, indent=2)
    (folder / "quant_model_description.json").write_text(told, encoding="utf-8")
    return folder


def _renamed(
    tensors: dict[str, torch.Tensor], rules: tuple[tuple[str, str], ...]
) -> dict[str, torch.Tensor]:
    renamed = {}
    for name, tensor in tensors.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed


def _one_by_one(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Take experts that are stacked in one tensor apart."""
    apart = {}
    for name, tensor in tensors.items():
        prefix, stacked, kind = name.partition(".mlp.experts.")
        if not stacked:
            apart[name] = tensor
            continue
        for index, weights in enumerate(tensor):
            expert = f"{prefix}.mlp.experts.{index}"
            if kind == "down_proj":
                apart[f"{expert}.w2.weight"] = weights.clone()
                continue
            gate, up = weights.chunk(2)
            apart[f"{expert}.w1.weight"] = gate.clone()
            apart[f"{expert}.w3.weight"] = up.clone()
    return apart
