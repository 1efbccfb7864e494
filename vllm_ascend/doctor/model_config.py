# SPDX-License-Identifier: Apache-2.0
"""A model's ``config.json``, read without vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError

DSV4 = "deepseek_v4"
_DEFAULT_MAX_MODEL_LEN = 131_072


def read_model(path: Path) -> dict[str, Any]:
    """Return the fields of a Hugging Face ``config.json`` that describe the text model.

    Args:
        path: The file, or the folder that holds it.

    Raises:
        BadInputError: There is no such file, or it holds something else.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        fields = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise BadInputError(f"--model {path}: not a readable config.json ({error})") from error
    text = fields.get("text_config", fields) if isinstance(fields, dict) else fields
    if not (isinstance(text, dict) and _is_count(text.get("num_hidden_layers"))):
        raise BadInputError(f"--model {path}: no Hugging Face config.json (no num_hidden_layers)")
    return {"model_type": fields.get("model_type"), **text}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 1


def max_model_len_of(fields: dict[str, Any]) -> int:
    """Return the tokens of the longest request that the model is made for."""
    return int(fields.get("max_position_embeddings") or _DEFAULT_MAX_MODEL_LEN)
