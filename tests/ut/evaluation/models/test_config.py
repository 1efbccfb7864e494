# SPDX-License-Identifier: Apache-2.0
"""vLLM's reading of a config.json becomes Hugging Face's again, and its row sizes the caches'."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from transformers import DeepseekV4Config
from vllm.transformers_utils.config import get_config

from vllm_ascend_evaluation.models.deepseek_v4 import hf_config, specs_of_model
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

# As DeepSeek publishes it.
YARN = {
    "type": "yarn",
    "factor": 16,
    "original_max_position_embeddings": 65536,
    "beta_fast": 32,
    "beta_slow": 1,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("config") / "model"
    make_tiny_model(folder)
    return folder


def vllm_config(folder, **cache) -> SimpleNamespace:
    read = get_config(folder, trust_remote_code=False)
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_config=read, dtype=torch.float32),
        cache_config=SimpleNamespace(user_specified_block_size=True, block_size=32, **cache),
        parallel_config=SimpleNamespace(worker_cls="auto"),
    )


@pytest.mark.parametrize("changes", [{}, {"rope_scaling": YARN, "compress_rope_theta": 160000}])
def test_the_config_is_hugging_faces(model, tmp_path, changes):
    config = json.loads((model / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = DeepseekV4Config.from_pretrained(tmp_path).to_dict()
    ours = hf_config(vllm_config(tmp_path)).to_dict()
    different = {name for name in theirs | ours if theirs.get(name) != ours.get(name)}
    assert different <= {"_name_or_path"}


def test_caches_have_the_models_sizes(model):
    engine = vllm_config(model)
    specs = specs_of_model(engine, hf_config(engine))
    assert (specs.window.head_size, specs.window.block_size) == (32, 32)
    assert specs.indexer.head_size == 16
    assert specs.state[128].head_size == 2 * 32
    # All pages of the pool have one of two sizes, whatever the model's dtype.
    pages = {spec.page_size_bytes for spec in (*specs.mla.values(), *specs.state.values())}
    assert pages == {specs.window.page_size_bytes}
    assert specs.indexer_state.page_size_bytes == specs.indexer.page_size_bytes


def test_other_compression_ratios_are_refused(model):
    engine = vllm_config(model)
    config = hf_config(engine)
    config.compress_rates = {"compressed_sparse_attention": 8, "heavily_compressed_attention": 128}
    with pytest.raises(ValueError, match="must be 4 and 128"):
        specs_of_model(engine, config)
