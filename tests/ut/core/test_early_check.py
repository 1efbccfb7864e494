# SPDX-License-Identifier: Apache-2.0
"""What contradicts DeepSeek-V4's layout is refused before an engine starts; the rest is not."""

from __future__ import annotations

import copy

import pytest
from vllm.config import KVTransferConfig

from vllm_ascend.core.early_check import check_settings
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.replay import scheduler as factory
from vllm_ascend.replay.layouts import dsv4_flash_a3
from vllm_ascend.replay.scheduler import SchedulerOptions

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
    check_settings(vllm_config, load_config(environment))


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


def test_a_connector_that_expects_whole_blocks_counts():
    """As in the scheduler: without partial hits only whole blocks' multiples can be kept."""
    connector = KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both")
    with pytest.raises(ValueError, match="multiples of 16384 tokens"):
        check({**DSV4, **PARTIAL, RETENTION: "128"}, connector=connector)
