# SPDX-License-Identifier: Apache-2.0
"""Layouts come out of vLLM's own grouping and sizing as documented."""

import json
import subprocess
from dataclasses import replace

import pytest
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from vllm_ascend.dry_run.layouts import dsv4_flash_a3, dsv4_flash_gpu, from_hf_config
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler

MEMORY = SchedulerOptions(kv_memory_bytes=16 << 30)


def test_gpu_layout_has_vllms_block_count():
    """16,334 blocks of 256 tokens in 16 GiB, measured on stock vLLM 0.20.2."""
    scheduler = build_scheduler(dsv4_flash_gpu(), MEMORY)
    assert scheduler.kv_cache_config.num_blocks == 16_334
    assert scheduler.block_size == 256


@pytest.mark.parametrize("layout", [dsv4_flash_a3(128), dsv4_flash_gpu()], ids=lambda x: x.name)
def test_deepseek_v4_flash_has_all_its_caches(layout):
    kinds = {}
    for name in layout.specs:
        kind = name.partition(".attn.")[2]
        kinds[kind] = kinds.get(kind, 0) + 1
    assert kinds == {
        "swa_cache": 44,  # 43 layers and the MTP layer
        "mla": 41,  # 21 C4 and 20 C128
        "compressor.state_cache": 41,
        "indexer.k_cache": 21,
        "indexer.compressor.state_cache": 21,
    }


def test_layers_do_not_share_spec_objects():
    """vLLM pads pages in place; a shared object would be padded for its neighbours, too."""
    specs = dsv4_flash_gpu().specs
    assert len({id(spec) for spec in specs.values()}) == len(specs)


CONFIG = {
    "model_type": "some_text",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "sliding_window": 256,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


def write(folder, **changes):
    config = {**CONFIG, **changes}
    path = folder / "config.json"
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return path


def test_hugging_face_config(tmp_path):
    layout = from_hf_config(write(tmp_path).parent, block_size=32)
    kinds = [type(spec) for spec in layout.specs.values()]
    assert kinds == [SlidingWindowSpec, FullAttentionSpec] * 2
    spec = layout.specs["model.layers.0.attn"]
    assert (spec.block_size, spec.num_kv_heads, spec.head_size) == (32, 2, 64)
    assert spec.sliding_window == 256
    scheduler = build_scheduler(layout, SchedulerOptions(num_blocks=100))
    assert len(scheduler.kv_cache_config.kv_cache_groups) == 2


def test_window_pattern_and_nested_text_config(tmp_path):
    path = write(tmp_path, layer_types=None, sliding_window_pattern=2)
    path.write_text(
        json.dumps({"model_type": "wrapper", "text_config": json.loads(path.read_text())})
    )
    kinds = [type(spec) for spec in from_hf_config(path).specs.values()]
    assert kinds == [SlidingWindowSpec, FullAttentionSpec] * 2


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sliding_window": None}, "field 'sliding_window' is missing"),
        ({"num_hidden_layers": 5}, "layer_types has 4 entries for 5 layers"),
        ({"layer_types": ["linear_attention"] * 4}, "'linear_attention' is neither full nor"),
        ({"layer_types": None}, "field 'sliding_window_pattern' is missing"),
    ],
)
def test_a_config_that_does_not_fit_is_named(tmp_path, changes, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        from_hf_config(write(tmp_path, **changes))
    assert "config.json" in str(error.value)


def test_a_file_that_is_no_config(tmp_path):
    with pytest.raises(ValueError, match="not a readable Hugging Face config"):
        from_hf_config(tmp_path / "nowhere.json")


def test_options_want_one_size():
    with pytest.raises(ValueError, match="exactly one of"):
        SchedulerOptions()
    with pytest.raises(ValueError, match="exactly one of"):
        SchedulerOptions(kv_memory_bytes=1, num_blocks=1)


def test_a_scheduler_starts_no_process(monkeypatch):
    """A model class of vLLM's own would be asked for its abilities in a process of its own."""

    def refuse(*args, **kwargs):
        raise AssertionError(f"started {args}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    length = replace(MEMORY, max_model_len=12_345)  # a configuration that nobody has made yet
    assert build_scheduler(dsv4_flash_gpu(), length).max_model_len == 12_345
