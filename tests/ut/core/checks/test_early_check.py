# SPDX-License-Identifier: Apache-2.0
"""What contradicts DeepSeek-V4's layout is refused before an engine starts; the rest is not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs

import vllm_ascend
from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS
from vllm_ascend.core.checks.early_check import check_settings
from vllm_ascend.dry_run import scheduler as factory
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import SUPPORTED, running_release

DSV4 = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
ROWS = "VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE"
RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
PARTIAL = {"VLLM_ASCEND_DSV4_PARTIAL_HITS": "1"}


def check(
    environment: dict[str, str],
    block_size: int = 128,
    model_type: str = "deepseek_v4",
    connector: KVTransferConfig | None = None,
    **options,
) -> None:
    layout = dsv4_flash_a3()
    vllm_config = factory._vllm_config(layout, SchedulerOptions(num_blocks=1, **options))
    vllm_config.model_config = copy.copy(vllm_config.model_config)
    text_config = copy.deepcopy(vllm_config.model_config.hf_text_config)
    text_config.model_type = model_type
    vllm_config.model_config.hf_text_config = text_config
    vllm_config.cache_config.block_size = block_size
    vllm_config.kv_transfer_config = connector
    check_settings(vllm_config, load_config(environment), running_release())


@WHERE_BLOCKS_COUNT_ROWS
@pytest.mark.parametrize(
    ("environment", "block_size", "error"),
    [
        ({ROWS: "64"}, 128, f"{ROWS}=64 contradicts --block-size 128"),
        ({}, 16, "--block-size 16 is invalid for DeepSeek-V4: allowed are 32, 64, 128"),
        ({RETENTION: "4096"}, 128, f"{RETENTION}=4096 is invalid: .* multiples of 16384 tokens"),
        ({RETENTION: "4097"}, 32, f"{RETENTION}=4097 is invalid: .* multiples of 4096 tokens"),
        ({RETENTION: "1000", **PARTIAL}, 128, f"{RETENTION}=1000 .* multiples of 128 tokens"),
    ],
)
def test_contradictions_are_named(environment, block_size, error):
    with pytest.raises(ValueError, match=error):
        check({**DSV4, **environment}, block_size)


@pytest.mark.parametrize(
    ("environment", "block_size"),
    [
        ({}, 64),
        ({ROWS: "64"}, 64),
        ({RETENTION: "auto"}, 128),
        ({RETENTION: "0"}, 128),
        ({RETENTION: "4096"}, 32),
        ({RETENTION: "1024", **PARTIAL}, 128),
    ],
)
def test_what_fits_passes(environment, block_size):
    check({**DSV4, **environment}, block_size)


def test_other_layouts_are_left_to_their_schedulers():
    check({**DSV4, ROWS: "64"}, 128, model_type="gemma3_text")
    check({ROWS: "64", RETENTION: "1"}, 128)


def test_no_cache_no_interval():
    check({**DSV4, RETENTION: "1"}, enable_prefix_caching=False)


@WHERE_BLOCKS_COUNT_ROWS
def test_a_connector_that_expects_whole_blocks_counts():
    """As in the scheduler: without partial hits only whole blocks' multiples can be kept."""
    with pytest.raises(ValueError, match="multiples of 16384 tokens"):
        check({**DSV4, **PARTIAL, RETENTION: "128"}, connector=fitting_connector())


def connector(name: str, **extra: Any) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector=name, kv_role="kv_both", kv_connector_extra_config=extra or {}
    )


def fitting_connector() -> KVTransferConfig:
    """One that says of itself that it fits the layout."""
    return KVTransferConfig(
        kv_connector="IdleConnector",
        kv_connector_module_path="vllm_ascend.doctor.idle_connector",
        kv_role="kv_both",
    )


REFUSED = "cannot be used with DeepSeek-V4 in Ascend's layout"
CANNOT_WORK_TOGETHER = {
    "hybrid manager off": (
        {"disable_hybrid_kv_cache_manager": True},
        f"--disable-hybrid-kv-cache-manager {REFUSED}.*: leave the option out",
    ),
    "hybrid manager turned off by vLLM": (
        {"kv_transfer_config": fitting_connector()},
        "KV connector IdleConnector .*: add --no-disable-hybrid-kv-cache-manager",
    ),
    "connector of one group": (
        {"kv_transfer_config": connector("ExampleConnector")},
        f"KV connector ExampleConnector {REFUSED}.*: leave --kv-transfer-config out, or name",
    ),
    "connector of one group, hybrid manager on": (
        {
            "kv_transfer_config": connector("ExampleConnector"),
            "disable_hybrid_kv_cache_manager": False,
        },
        f"KV connector ExampleConnector {REFUSED}.*: leave --kv-transfer-config out, or name",
    ),
    "offloading": (
        {"kv_offloading_size": 0.25},
        f"KV connector OffloadingConnector {REFUSED}.*: leave --kv-offloading-size out",
    ),
    "simple offloading": (
        {
            "kv_transfer_config": connector("SimpleCPUOffloadConnector", cpu_bytes_to_use=1 << 28),
            "disable_hybrid_kv_cache_manager": False,
        },
        f"KV connector SimpleCPUOffloadConnector {REFUSED}.*tokens: leave --kv-transfer-config out",
    ),
    "connector that does not say that it tells rows from tokens": (
        {
            "kv_transfer_config": connector("MooncakeConnector"),
            "disable_hybrid_kv_cache_manager": False,
        },
        f"KV connector MooncakeConnector {REFUSED}.*name a connector whose class has knows_rows",
    ),
    "no connector of that name": (
        {
            "kv_transfer_config": connector("NoSuchConnector"),
            "disable_hybrid_kv_cache_manager": False,
        },
        "--kv-transfer-config: .*NoSuchConnector",
    ),
    "prompt embeddings": (
        {"enable_prompt_embeds": True},
        f"--enable-prompt-embeds {REFUSED}.*token ids.*: leave the option out",
    ),
    "decode context parallelism": (
        {"decode_context_parallel_size": 2, "tensor_parallel_size": 2},
        f"--decode-context-parallel-size 2 {REFUSED}.*: set it to 1",
    ),
    "prefill context parallelism": (
        {"prefill_context_parallel_size": 2},
        f"--prefill-context-parallel-size 2 {REFUSED}.*: set it to 1",
    ),
}
SHAPE = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "compress_ratios": [0, 4, 128],
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "sliding_window": 128,
    "vocab_size": 1024,
    "max_position_embeddings": 1 << 17,
    "dtype": "float32",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shape of a tiny DeepSeek-V4: no weights are needed before an engine starts."""
    vllm_ascend.register()  # as vLLM does, while it reads the command line
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(SHAPE))
    return folder


def create_engine_config(model: Path, **options: Any) -> None:
    common = {"dtype": "float32", "block_size": 128, "max_model_len": 4096}
    EngineArgs(
        model=str(model), skip_tokenizer_init=True, **{**common, **options}
    ).create_engine_config()


@WHERE_BLOCKS_COUNT_ROWS
@pytest.mark.parametrize("name", CANNOT_WORK_TOGETHER)
def test_options_that_cannot_work_together_are_one_error(model, monkeypatch, name):
    """Before anything is loaded; from inside the engine they are an assertion without a word."""
    if name == "hybrid manager turned off by vLLM" and running_release() is not SUPPORTED[0]:
        pytest.skip("this vLLM leaves it on for that connector")
    options, error = CANNOT_WORK_TOGETHER[name]
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    with pytest.raises(ValueError, match=error) as raised:
        create_engine_config(model, **options)
    assert "\n" not in str(raised.value)


@WHERE_BLOCKS_COUNT_ROWS
def test_options_that_can_work_together_pass(model, monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    create_engine_config(
        model,
        kv_transfer_config=fitting_connector(),
        disable_hybrid_kv_cache_manager=False,
        enable_chunked_prefill=False,
    )


def test_with_nothing_set_vllm_decides_alone(model, monkeypatch):
    monkeypatch.delenv("VLLM_ASCEND_APPLY_DSV4_PATCH", raising=False)
    create_engine_config(model, enable_prompt_embeds=True, disable_hybrid_kv_cache_manager=True)
