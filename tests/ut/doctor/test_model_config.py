# SPDX-License-Identifier: Apache-2.0
"""A ``config.json`` that cannot be used is bad input, told before vLLM is started."""

from __future__ import annotations

import json

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.doctor.model_config import read_model


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {},
        {"num_hidden_layers": None},
        {"num_hidden_layers": "many"},
        {"num_hidden_layers": 0},
        {"text_config": None},
        {"text_config": []},
        {"text_config": {}},
    ],
)
def test_what_is_no_config_is_refused(tmp_path, fields):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(BadInputError, match=r"^--model .*: no Hugging Face config.json"):
        read_model(tmp_path)


def test_the_text_models_fields_are_returned(tmp_path):
    fields = {"model_type": "gemma3", "text_config": {"num_hidden_layers": 2}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert read_model(tmp_path) == {"model_type": "gemma3", "num_hidden_layers": 2}
