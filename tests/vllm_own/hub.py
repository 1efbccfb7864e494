# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the models that vLLM's own tests ask a hub for.

``python -m tests.vllm_own.hub FOLDER`` writes them as a cache of that hub. Those that an engine
serves have random weights; of all others there are configurations alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    ChameleonImageProcessor,
    ChameleonProcessor,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from vllm_ascend_evaluation.models.tiny.tokenizer import train_tokenizer

_VOCAB_SIZE = 1024
_TINY = {
    "vocab_size": _VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "initializer_range": 0.5,  # so that tokens differ by more than rounding
}
_OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "max_position_embeddings": 2048,
    "vocab_size": 50272,
    "torch_dtype": "float16",
    "do_layer_norm_before": True,
    "activation_function": "relu",
}
_QWEN = {
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "hidden_act": "silu",
}


def _config(**fields: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(fields))

    return write


def _llama(folder: Path) -> None:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**_TINY)).to(torch.float32).save_pretrained(folder)
    train_tokenizer(_VOCAB_SIZE).save_pretrained(folder)


def _qwen3(folder: Path) -> None:
    torch.manual_seed(0)
    fields = {**_TINY, "max_position_embeddings": 40960, "tie_word_embeddings": True}
    Qwen3ForCausalLM(Qwen3Config(**fields)).to(torch.bfloat16).save_pretrained(folder)
    train_tokenizer(_VOCAB_SIZE).save_pretrained(folder)


def _with_images(folder: Path) -> None:
    """Any model that sees will do; this one's modules can be imported beside every transformers."""
    tokenizer = train_tokenizer(_VOCAB_SIZE)
    tokenizer.add_special_tokens(
        {
            "sep_token": "<sep>",
            "additional_special_tokens": ["<image>", "<racm3:break>", "<eoss>"],
        }
    )
    ChameleonProcessor(
        image_processor=ChameleonImageProcessor(),
        tokenizer=tokenizer,
        image_seq_length=576,
        image_token="<image>",
    ).save_pretrained(folder)
    _config(
        **{**_TINY, "max_position_embeddings": 4096, "vocab_size": len(tokenizer)},
        architectures=["ChameleonForConditionalGeneration"],
        model_type="chameleon",
        torch_dtype="float16",
        vocabulary_map=tokenizer.get_vocab(),
        vq_config={"resolution": 512},
    )(folder)


MODELS: dict[str, Callable[[Path], None]] = {
    "facebook/opt-125m": _config(
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        ffn_dim=3072,
        word_embed_proj_dim=768,
        **_OPT,
    ),
    "facebook/opt-350m": _config(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        ffn_dim=4096,
        word_embed_proj_dim=512,
        **_OPT,
    ),
    "Qwen/Qwen1.5-7B": _config(
        architectures=["Qwen2ForCausalLM"],
        model_type="qwen2",
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        intermediate_size=11008,
        max_position_embeddings=32768,
        sliding_window=32768,
        use_sliding_window=False,
        max_window_layers=28,
        **_QWEN,
    ),
    "Qwen/Qwen3-0.6B": _qwen3,
    "hmellor/tiny-random-LlamaForCausalLM": _llama,
    "llava-hf/llava-1.5-7b-hf": _with_images,
    "Qwen/Qwen2.5-VL-3B-Instruct": _with_images,
}


def write_hub(home: Path) -> None:
    """Write every stand-in into a folder that ``HF_HOME`` is to name."""
    for name, write in MODELS.items():
        cached = home / "hub" / f"models--{name.replace('/', '--')}"
        snapshot = cached / "snapshots" / "0"
        snapshot.mkdir(parents=True, exist_ok=True)
        (cached / "refs").mkdir(exist_ok=True)
        (cached / "refs" / "main").write_text("0")
        write(snapshot)


if __name__ == "__main__":
    write_hub(Path(sys.argv[1]))
