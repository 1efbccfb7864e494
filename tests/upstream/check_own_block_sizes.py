# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py) that has block sizes itself: ours and its agree.

Its layers, tables and kernels know 32, 64 and 128 rows; of ours is which size is in force.
"""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm.config import CacheConfig, VllmConfig, set_current_vllm_config
from vllm.v1.worker.utils import select_common_block_size

import vllm_ascend.patch.platform
import vllm_ascend.patch.worker
import vllm_ascend.platform
import vllm_ascend.utils
from tests.upstream.fixtures import (
    A3,
    A5,
    splits_slots_by_the_groups_block,
    without_npu,  # noqa: F401
)
from vllm_ascend.attention.context_parallel.dsa_cp import AscendDSACPMetadataBuilder
from vllm_ascend.attention.dsa_v1 import AscendDSABackend, AscendDSAMetadataBuilder
from vllm_ascend.core.layout.dsv4_layout import A3 as A3_DEVICE
from vllm_ascend.core.layout.dsv4_layout import A5 as A5_DEVICE
from vllm_ascend.core.layout.dsv4_layout import dsv4_block_sizes
from vllm_ascend.core.layout.specs import counts_rows, rows_per_block, tokens_per_block
from vllm_ascend.models import deepseek_v4
from vllm_ascend.models.layer.attention import layer as attention_layer

NAME = "VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE"


@pytest.fixture(params=(128, 64, 32))
def rows(request) -> int:
    return request.param


@pytest.fixture
def vllm_config(rows, without_npu):
    config = VllmConfig(cache_config=CacheConfig(block_size=rows))
    with set_current_vllm_config(config):
        yield config


def serving_config(block_size: int | None, model_type: str = "deepseek_v4") -> SimpleNamespace:
    cache_config = CacheConfig() if block_size is None else CacheConfig(block_size=block_size)
    return SimpleNamespace(
        cache_config=cache_config,
        scheduler_config=SimpleNamespace(enable_chunked_prefill=True),
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(model_type=model_type), is_hybrid=False
        ),
    )


@pytest.mark.parametrize("block_size", (None, 128, 64, 32))
def test_block_size_and_variable_are_one_setting(block_size, rows, monkeypatch):
    monkeypatch.setenv(NAME, str(rows))
    for refresh in (vllm_ascend.utils.refresh_block_size, vllm_ascend.platform.refresh_block_size):
        config = serving_config(block_size)
        if block_size not in (None, rows):
            with pytest.raises(ValueError, match=f"{NAME}={rows} contradicts --block-size"):
                refresh(config)
            continue
        refresh(config)
        assert config.cache_config.block_size == rows


def test_what_is_not_ours_stays_as_it_was(rows, monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "0")
    monkeypatch.setenv(NAME, str(rows))
    for config, expected in ((serving_config(64), 64), (serving_config(64, "deepseek_v3"), 128)):
        vllm_ascend.platform.refresh_block_size(config)
        assert config.cache_config.block_size == expected


@pytest.mark.parametrize("device", (A3_DEVICE, A5_DEVICE), ids=("A3", "A5"))
def test_our_sizes_are_its_own(device, rows, monkeypatch):
    is_a5 = device is A5_DEVICE
    kind = vllm_ascend.utils.AscendDeviceType["A5" if is_a5 else "A3"]
    monkeypatch.setattr(attention_layer, "get_ascend_device_type", lambda: kind)
    blocks, pages = attention_layer.get_dsv4_block_sizes()[rows]
    assert (tuple(blocks), tuple(pages)) == (A5 if is_a5 else A3)[rows]
    ours = dsv4_block_sizes(rows, device)
    assert blocks == [ours.compressed, ours.swa, ours.c4_state, ours.c128_state]
    assert pages == [ours.indexer_page_bytes, ours.page_bytes]


def test_every_cache_layer_has_blocks_of_the_size_in_force(rows, vllm_config):
    (compressed, window_rows, c4_rows, c128_rows), pages = A3[rows]
    cache_config = vllm_config.cache_config
    layers = (
        deepseek_v4.AscendCompressorStateCache(2048, torch.float32, 4, c4_rows, "c4.state"),
        deepseek_v4.AscendCompressorStateCache(1024, torch.float32, 128, c128_rows, "c128.state"),
        deepseek_v4.AscendDeepseekV4IndexerCache(128, torch.int8, "indexer", cache_config, 4),
        deepseek_v4.AscendDeepseekV4SWACache(512, 128, torch.bfloat16, "swa", cache_config),
    )
    c4, c128, indexer, window = (layer.get_kv_cache_spec(vllm_config) for layer in layers)
    assert [rows_per_block(spec) for spec in (c4, c128, indexer, window)] == [
        *(c4_rows, c128_rows, compressed, window_rows)
    ]
    assert counts_rows(indexer) and tokens_per_block(indexer) == 4 * rows
    assert indexer.page_size_bytes == pages[0]
    assert {spec.page_size_bytes for spec in (c4, c128, window)} == {pages[1]}


def test_the_kernels_take_every_block_whole(rows):
    for size in {*A3[rows][0], *A5[rows][0]}:
        assert select_common_block_size(size, [AscendDSABackend]) == size


@pytest.mark.parametrize("builder", (AscendDSAMetadataBuilder, AscendDSACPMetadataBuilder))
def test_builders_split_slots_by_the_groups_block(builder, rows):
    splits_slots_by_the_groups_block(builder, rows)
