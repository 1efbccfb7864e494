# SPDX-License-Identifier: Apache-2.0
"""A Gemma-3 of any depth has a full layer after each five with a window."""

from vllm_ascend_evaluation.models.tiny.gemma import gemma_config


def test_every_sixth_layer_is_a_full_one():
    config = gemma_config(14)
    full = [i for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    assert full == [5, 11] and len(config["layer_types"]) == config["num_hidden_layers"] == 14


def test_a_gemma_without_a_number_of_layers_has_a_full_one():
    assert gemma_config()["layer_types"][-1] == "full_attention"
