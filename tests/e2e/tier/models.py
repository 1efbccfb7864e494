# SPDX-License-Identifier: Apache-2.0
"""Folders that look like a model's to whoever names its weights; no model is ever built of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.config import ModelConfig

from vllm_ascend.dry_run import scheduler as dry_run


def model_at(folder: Path, value: float = 0.0) -> Path:
    """Write a model whose one tensor holds one value."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dry_run._STAND_IN_MODEL))
    save_file({"w": torch.full((4, 4), value)}, folder / "model.safetensors")
    return folder


def model_config(model: Path | str, **options: Any) -> ModelConfig:
    """Return the configuration of a model at a path, as the dry run's own but for the options."""
    told = {"dtype": "bfloat16", "seed": 0, "skip_tokenizer_init": True, **options}
    return ModelConfig(model=str(model), **told)
