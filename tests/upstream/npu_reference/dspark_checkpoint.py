# SPDX-License-Identifier: Apache-2.0
"""A tiny checkpoint with DSpark drafts in the place of MTP, as DeepSeek-V4-Flash-0731 has them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

NUM_LAYERS, BLOCK = 3, 7
_TARGET_LAYERS = (1, 3, 5)
_NOISE_TOKEN = 2
_HEADS = ("fn", "base", "scale")
# What only the MTP layer has.
_OF_MTP = ("e_proj", "h_proj", "enorm", "hnorm", "emb.", "head.", "hc_head_", "norm.")
# As much as makes a known pair of tokens the likely one, most of the time.
_BIAS = 30.0


def publish_dspark(published: Path, folder: Path, answers: Sequence[Sequence[int]]) -> Path:
    """Write a published tiny checkpoint with three DSpark layers.

    The layers are the MTP layer, disturbed. Every other pair of tokens of some answers is known to
    the Markov head, so that some drafts are right; the others depend on all rows that are read.

    Args:
        published: What :func:`checkpoint.publish` wrote.
        folder: Where to.
        answers: Of the target.

    Returns:
        ``folder``.
    """
    shutil.copytree(published, folder)
    main = load_file(folder / "model.safetensors")
    layer = load_file(folder / "mtp.safetensors")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    width, vocabulary = config["hidden_size"], config["vocab_size"]
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.15

    tensors: dict[str, torch.Tensor] = {}
    for stage in range(NUM_LAYERS):
        for name, tensor in layer.items():
            rest = name.removeprefix("mtp.0.")
            if not rest.startswith(_OF_MTP):
                tensors[f"mtp.{stage}.{rest}"] = tensor + normal(*tensor.shape)
    last = f"mtp.{NUM_LAYERS - 1}"
    pairs = sorted({pair for answer in answers for pair in pairwise(answer)})[::2]
    known, following = torch.zeros(vocabulary, len(pairs)), torch.zeros(vocabulary, len(pairs))
    for rank, (token, then) in enumerate(pairs):
        known[token, rank], following[then, rank] = _BIAS, 1.0
    tensors |= {
        "mtp.0.main_proj.weight": normal(width, width * len(_TARGET_LAYERS)),
        "mtp.0.main_norm.weight": torch.ones(width),
        f"{last}.norm.weight": layer["mtp.0.norm.weight"],
        f"{last}.markov_head.markov_w1.weight": known,
        f"{last}.markov_head.markov_w2.weight": following,
        f"{last}.confidence_head.proj.weight": normal(1, width + len(pairs)),
        "mtp.0.embed.weight": main["model.embed_tokens.weight"].clone(),
        f"{last}.head.weight": main["head.weight"].clone(),
    }
    tensors |= {f"{last}.{n}": layer[f"mtp.0.{n}"] for n in map("hc_head_".__add__, _HEADS)}
    save_file(tensors, folder / "mtp.safetensors")
    config |= {
        "n_mtp_layers": NUM_LAYERS,
        "dspark_block_size": BLOCK,
        "dspark_target_layer_ids": list(_TARGET_LAYERS),
        "dspark_markov_rank": len(pairs),
        "dspark_noise_token_id": _NOISE_TOKEN,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return folder
