# SPDX-License-Identifier: Apache-2.0
"""Makes a tiny DeepSeek-V4 in Hugging Face's format: every kind of layer, random weights."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from vllm_ascend.core.layout.dsv4_layout import C4_RATIO, C128_RATIO
from vllm_ascend_evaluation.models.deepseek_v4_mtp import CHECKPOINT_PREFIX, MtpLayer
from vllm_ascend_evaluation.models.tiny import refuse_existing
from vllm_ascend_evaluation.models.tiny.tokenizer import train_tokenizer

VOCAB_SIZE = 1024
# A window, a C4 and a C128 layer, twice.
_COMPRESS_RATIOS = (0, C4_RATIO, C128_RATIO) * 2
_SHAPE: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": len(_COMPRESS_RATIOS),
    "compress_ratios": list(_COMPRESS_RATIOS),
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "num_hash_layers": 1,
    "hc_mult": 2,
    "sliding_window": 128,
    # With few index heads scores tie, and which of the tied rows is chosen is up to rounding.
    "index_n_heads": 32,
    "index_head_dim": 16,
    # A query leaves rows out from 8,192 tokens on. Where it does, the last row taken and the first
    # left out may be as good as equal, and then rounding decides what is answered.
    "index_topk": 2048,
    "max_position_embeddings": 1048576,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    # Large enough that an answer depends on every token that came before.
    "initializer_range": 0.15,
}
# Hugging Face starts these at 0, where a wrong one would not be noticed.
_STARTED_AT_ZERO = ("position_bias", "sinks", "base", "hc_base", "e_score_correction_bias")


def make_tiny_model(folder: Path, seed: int = 0, **changes: Any) -> None:
    """Write config, weights, tokenizer and chat template.

    Args:
        folder: Where to; made if it is not there.
        seed: Of the weights; the same seed gives the same model.
        changes: Fields of the configuration that differ, such as ``head_dim``.

    Raises:
        FileExistsError: A model lies there already; nothing was written.
        OSError: The folder cannot be written.
    """
    refuse_existing(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".part-", dir=folder) as part:
        _write_model(Path(part), seed, _SHAPE | changes)
        # The configuration last: without it an interrupted model is no model, and is made anew.
        for file in sorted(Path(part).iterdir(), key=lambda file: file.name == "config.json"):
            file.rename(folder / file.name)


def _write_model(folder: Path, seed: int, shape: dict[str, Any]) -> None:
    config = DeepseekV4Config(**shape)
    random_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = DeepseekV4ForCausalLM(config)
        _vary(model)
        draft = _random_mtp_layer(model)
    finally:
        torch.random.set_rng_state(random_state)
    model.save_pretrained(folder)
    # A file of its own: vLLM reads all of them, Hugging Face the one that it knows.
    save_file(draft, folder / "mtp.safetensors")
    train_tokenizer(VOCAB_SIZE).save_pretrained(folder)
    _write_config_as_published(folder / "config.json", shape)


@torch.no_grad()
def _random_mtp_layer(model: DeepseekV4ForCausalLM) -> dict[str, torch.Tensor]:
    """Return an MTP layer that says again what the target says, slightly disturbed.

    Of its drafts some are right, then, and most are wrong.
    """
    layer = MtpLayer(model.config)
    layer.apply(model._init_weights)
    _vary(layer)
    layer.h_proj.weight.copy_(torch.eye(model.config.hidden_size))
    layer.hc_head.load_state_dict(model.model.hc_head.state_dict())
    layer.norm.load_state_dict(model.model.norm.state_dict())
    return {CHECKPOINT_PREFIX + name: tensor for name, tensor in layer.state_dict().items()}


@torch.no_grad()
def _vary(model: nn.Module) -> None:
    for name, tensor in model.state_dict().items():
        if name.endswith(_STARTED_AT_ZERO):
            tensor.normal_(0, 0.3)
        elif name.endswith("tid2eid"):
            num_tokens, num_chosen = tensor.shape
            num_experts = model.config.n_routed_experts
            experts = torch.rand(num_tokens, num_experts).argsort(dim=1)
            tensor.copy_(experts[:, :num_chosen])


def _write_config_as_published(file: Path, shape: dict[str, Any]) -> None:
    """Keep the fields that DeepSeek publishes: vLLM refuses those that transformers derives."""
    config = json.loads(file.read_text())
    for derived in (
        "layer_types",
        "mlp_layer_types",
        "compress_rates",
        "rope_parameters",
        "partial_rotary_factor",
    ):
        config.pop(derived, None)
    published = {**config, **shape}
    file.write_text(json.dumps(published, indent=2, sort_keys=True) + "\n")
