# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py): every place that vllm-ascend has 128 written in."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.config import CacheConfig, DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import deepseek_compressor, deepseek_v4_attention
from vllm.v1 import kv_cache_interface
from vllm.v1.attention.backends.mla import sparse_swa
from vllm.v1.worker.utils import select_common_block_size

import vllm_ascend.patch.platform
import vllm_ascend.patch.worker
import vllm_ascend.platform
import vllm_ascend.utils
from tests.upstream.fixtures import A3, A5, splits_slots_by_the_groups_block
from tests.ut.worker.flash import block_tables, flash_groups
from vllm_ascend.attention.context_parallel.dsa_cp import AscendDSACPMetadataBuilder
from vllm_ascend.attention.dsa_v1 import AscendDSABackend, AscendDSAMetadataBuilder
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec, AscendSlidingWindowMLASpec
from vllm_ascend.core.layout.specs import tokens_per_block
from vllm_ascend.models.layer.attention.layer import DSAAttention
from vllm_ascend.patch.platform.patch_kv_cache_interface import get_dsv4_compressed_kv_block_size
from vllm_ascend.utils import AscendDeviceType, get_compressed_pos_and_indices

NAME = "VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE"


@pytest.fixture(params=(128, 64, 32))
def rows(request, monkeypatch) -> int:
    monkeypatch.setenv(NAME, str(request.param))
    return request.param


@pytest.fixture
def vllm_config(monkeypatch):
    monkeypatch.setattr(
        vllm_ascend.platform.NPUPlatform, "check_and_update_config", lambda *_: None
    )
    config = VllmConfig(cache_config=CacheConfig(), device_config=DeviceConfig("cpu"))
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


@pytest.fixture
def quiet_ascend_config(monkeypatch):
    config = SimpleNamespace(xlite_graph_config=SimpleNamespace(enabled=False))
    monkeypatch.setattr(vllm_ascend.utils, "get_ascend_config", lambda: config)


@pytest.mark.parametrize("block_size", (None, 128, 64, 32))
def test_block_size_and_variable_are_one_setting(block_size, rows, quiet_ascend_config):
    for refresh in (vllm_ascend.utils.refresh_block_size, vllm_ascend.platform.refresh_block_size):
        config = serving_config(block_size)
        if block_size not in (None, rows):
            with pytest.raises(ValueError, match=f"{NAME}={rows} contradicts --block-size"):
                refresh(config)
            continue
        refresh(config)
        refresh(config)
        assert config.cache_config.block_size == rows


def test_block_size_alone_is_kept(quiet_ascend_config, monkeypatch):
    monkeypatch.delenv(NAME, raising=False)
    config = serving_config(32)
    vllm_ascend.platform.refresh_block_size(config)
    assert config.cache_config.block_size == 32


@pytest.mark.parametrize("case", ("off", "other model"))
def test_what_is_not_ours_stays_as_it_was(case, quiet_ascend_config, monkeypatch):
    if case == "off":
        monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "0")
    config = serving_config(64, "deepseek_v4" if case == "off" else "deepseek_v3")
    vllm_ascend.platform.refresh_block_size(config)
    assert config.cache_config.block_size == 128


def cache_layers(config: VllmConfig):
    state = deepseek_compressor.CompressorStateCache
    c4 = state(2 * 2 * 512, torch.float32, 4, 8, "c4.state")
    indexer_state = state(2 * 2 * 128, torch.float32, 4, 8, "indexer.state")
    c128 = state(2 * 512, torch.float32, 128, 32, "c128.state")
    indexer = deepseek_v4_attention.DeepseekV4IndexerCache(
        128, torch.int8, "indexer", config.cache_config, 4
    )
    window = sparse_swa.DeepseekV4SWACache(512, 128, torch.bfloat16, "swa", config.cache_config)
    return c4, indexer_state, c128, indexer, window


@pytest.mark.parametrize("device", ("A3", "A5"))
def test_every_cache_layer_has_blocks_of_the_size_in_force(device, rows, vllm_config, monkeypatch):
    monkeypatch.setattr(
        vllm_ascend.utils, "get_ascend_device_type", lambda: AscendDeviceType[device]
    )
    (compressed, window_rows, c4_rows, c128_rows), pages = {"A3": A3, "A5": A5}[device][rows]
    c4, indexer_state, c128, indexer, window = (
        layer.get_kv_cache_spec(vllm_config) for layer in cache_layers(vllm_config)
    )
    assert [s.block_size for s in (c4, indexer_state, c128)] == [c4_rows, c4_rows, c128_rows]
    assert indexer.block_size == compressed and window.block_size == window_rows
    assert (indexer_state.page_size_bytes, indexer.page_size_bytes) == (pages[0], pages[0])
    assert {c4.page_size_bytes, c128.page_size_bytes} == {pages[1]}
    assert [s.sliding_window for s in (c4, indexer_state, c128, window)] == [8, 8, 128, 128]
    assert isinstance(window, AscendSlidingWindowMLASpec)


def test_compressed_attention_has_blocks_of_the_size_in_force(rows, vllm_config):
    layer = object.__new__(DSAAttention)
    torch.nn.Module.__init__(layer)
    vllm_config.model_config = SimpleNamespace(dtype=torch.bfloat16)
    for ratio in (4, 128):
        layer.compress_ratio, layer.kv_cache_dtype, layer.head_size = ratio, "auto", 512
        spec = layer.get_kv_cache_spec(vllm_config)
        assert isinstance(spec, AscendMLAAttentionSpec)
        assert (spec.block_size, spec.compress_ratio) == (rows, ratio)
        assert spec.page_size_bytes == A3[rows][1][1]
    layer.compress_ratio = 0
    assert layer.get_kv_cache_spec(vllm_config) is None


def test_off_means_128(vllm_config, monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "0")
    vllm_config.cache_config = CacheConfig(block_size=64)
    specs = [layer.get_kv_cache_spec(vllm_config) for layer in cache_layers(vllm_config)]
    assert [spec.block_size for spec in specs] == [8, 8, 32, 128, 128]
    assert specs[1].page_size_bytes == 16640 and specs[0].page_size_bytes == 131072


def test_the_kernels_take_every_block_whole(rows):
    for size in {*A3[rows][0], *A5[rows][0]}:
        assert select_common_block_size(size, [AscendDSABackend]) == size
    assert AscendDSABackend.get_supported_kernel_block_sizes()[0] == 8  # others take the first


@pytest.mark.parametrize("builder", (AscendDSAMetadataBuilder, AscendDSACPMetadataBuilder))
def test_builders_split_slots_by_the_groups_block(builder, rows):
    splits_slots_by_the_groups_block(builder, rows)


def test_vllms_names_are_ascends_classes():
    assert kv_cache_interface.MLAAttentionSpec is AscendMLAAttentionSpec
    assert kv_cache_interface.SlidingWindowMLASpec is AscendSlidingWindowMLASpec
    assert get_dsv4_compressed_kv_block_size(4) == 128


def flash_tables(rows: int, max_model_len: int, max_num_batched_tokens: int = 8192):
    return block_tables(
        flash_groups(rows),
        max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_reqs=1,
    )


def test_a_prefill_that_resumes_inside_a_block_writes_behind_the_hit(rows):
    """vllm-ascend's own counting of rows, through our tables: rows 109.. of C128 at 13,952."""
    groups, tables = flash_groups(rows), flash_tables(rows, 32_768)
    num_blocks = [-(-14_000 // tokens_per_block(group.kv_cache_spec)) for group in groups]
    first_ids = [1 + group_id * 20_000 for group_id in range(len(groups))]
    tables.add_row(
        tuple(list(range(i, i + n)) for i, n in zip(first_ids, num_blocks, strict=True)), 0
    )
    start, length = np.array([13_952]), np.array([48])
    positions, requests, counts = get_compressed_pos_and_indices(
        start, length, np.arange(1), True, groups
    )
    tables.compute_slot_mapping(1, None, None, positions, requests)
    for group_id, group in enumerate(groups):
        spec = next(iter(group.kv_cache_spec.kv_cache_specs.values()))
        ratio = max(getattr(spec, "compress_ratio", 1), 1)
        first_row, last_row = 13_952 // ratio, 14_000 // ratio
        assert counts[group_id].tolist() == [last_row - first_row]
        table = tables[group_id]
        slots = table.slot_mapping.np[: last_row - first_row].tolist()
        assert slots == [
            (first_ids[group_id] + row // spec.block_size) * spec.block_size + row % spec.block_size
            for row in range(first_row, last_row)
        ]


@pytest.mark.parametrize("rows", (128, 64, 32))
def test_a_request_of_a_million_tokens_has_a_short_row(rows):
    tables = flash_tables(rows, 1 << 20, max_num_batched_tokens=10_240)
    assert sum(table.block_table.gpu.nbytes for table in tables.block_tables) <= 0.8 * (1 << 20)


@pytest.mark.parametrize(
    ("method", "first_request"),
    (
        (AscendDSAMetadataBuilder.build_prefill_metadata, 2),
        (AscendDSAMetadataBuilder.build_decode_metadata, 0),
        (AscendDSACPMetadataBuilder.build_req_metadata, 0),
    ),
)
def test_builders_count_positions_from_where_rows_begin(method, first_request, monkeypatch):
    """The original is replaced by one that only computes positions; the rest needs an NPU."""
    tables = flash_tables(32, 1 << 20, max_num_batched_tokens=1024)
    tables.state_window.first_tokens.gpu[:] = 12_800
    original = method.__kwdefaults__["original"]
    assert original.__name__ == method.__name__.replace("build_metadata", original.__name__)
    positions = torch.tensor([13_952], dtype=torch.int32)
    tables.state_window.first_tokens.gpu = torch.tensor([0, 0, 12_800, 0], dtype=torch.int32)
    if not first_request:
        tables.state_window.first_tokens.gpu = torch.tensor([12_800], dtype=torch.int32)
    computes = {"original": lambda self: SimpleNamespace(start_pos=positions)}
    monkeypatch.setattr(method, "__kwdefaults__", computes)
    assert method(SimpleNamespace(num_decodes=2)).start_pos.tolist() == [1152]
