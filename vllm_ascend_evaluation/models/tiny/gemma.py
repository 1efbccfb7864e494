# SPDX-License-Identifier: Apache-2.0
"""Makes a tiny Gemma-3, a model with windows and no compressed rows: random weights."""

from __future__ import annotations

import json
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from vllm_ascend_evaluation.models.tiny.maker import VOCAB_SIZE
from vllm_ascend_evaluation.models.tiny.tokenizer import train_tokenizer

# Five layers with a window and a full one, as published.
_PERIOD = ("sliding_attention",) * 5 + ("full_attention",)
_CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 32_768,
    "sliding_window": 128,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
    "query_pre_attn_scalar": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_theta": 10000.0,
    "rope_local_base_freq": 10000.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def gemma_config(num_layers: int = len(_PERIOD)) -> dict[str, Any]:
    """Return the config of a tiny Gemma-3.

    Args:
        num_layers: A step takes longer with more of them; every sixth is a full one.
    """
    layer_types = list(islice(cycle(_PERIOD), num_layers))
    return {**_CONFIG, "num_hidden_layers": num_layers, "layer_types": layer_types}


def make_tiny_gemma(folder: Path, num_layers: int = len(_PERIOD)) -> None:
    """Write config, weights and tokenizer; always the same.

    Args:
        folder: Written to.
        num_layers: As :func:`gemma_config` takes it.

    Raises:
        OSError: The folder cannot be written.
    """
    config = gemma_config(num_layers)
    random_state = torch.random.get_rng_state()
    torch.manual_seed(0)
    try:
        # Large enough that an answer depends on every token that came before.
        model = Gemma3ForCausalLM(Gemma3TextConfig(**config, initializer_range=0.3))
    finally:
        torch.random.set_rng_state(random_state)
    model.save_pretrained(folder)
    train_tokenizer(VOCAB_SIZE).save_pretrained(folder)
    # As published: vLLM refuses what transformers derives.
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
