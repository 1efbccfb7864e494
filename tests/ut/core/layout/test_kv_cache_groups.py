# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's groups, pages and tensors for every block size, through vLLM's own planner."""

from collections import Counter
from itertools import product

import pytest
import torch
from vllm.config import DeviceConfig, VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS
from vllm_ascend.core.layout.kv_cache_groups import (
    bytes_per_block,
    group_specs_by_kind,
    least_padding,
    plan_tensors,
    split_into_groups,
)
from vllm_ascend.core.layout.specs import tokens_per_block
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler
from vllm_ascend.releases import running_release

GIB = 1 << 30
# block size -> rows of [compressed, SWA, C4 state, C128 state], bytes of [indexer, other] pages
A3_TABLE = {
    128: ((128, 128, 8, 32), (16_640, 131_072)),
    64: ((64, 64, 4, 16), (8_320, 65_536)),
    32: ((32, 32, 2, 8), (4_160, 32_768)),
}


@pytest.mark.parametrize("block_size", A3_TABLE)
def test_groups_of_deepseek_v4_flash(block_size):
    """C4 (with its indexer), C128, SWA in two halves, C4 state, C128 state: 6 groups."""
    layout = dsv4_flash_a3(block_size)
    groups = split_into_groups(group_specs_by_kind(layout.specs))
    rows, _ = A3_TABLE[block_size]
    assert [len(group.layer_names) for group in groups] == [42, 20, 22, 22, 42, 20]
    assert [tokens_per_block(group.kv_cache_spec) for group in groups] == [
        rows[0] * 4,
        rows[0] * 128,
        rows[1],
        rows[1],
        rows[2],
        rows[3],
    ]
    grouped = Counter(name for group in groups for name in group.layer_names)
    assert grouped == Counter(layout.specs.keys())


@pytest.mark.parametrize("block_size", A3_TABLE)
def test_tensors_have_users_and_one_page_size(block_size):
    layout = dsv4_flash_a3(block_size)
    groups = split_into_groups(group_specs_by_kind(layout.specs))
    tensors = plan_tensors(groups)
    group_of = {name: i for i, group in enumerate(groups) for name in group.layer_names}
    pages = {
        name: group.kv_cache_spec.kv_cache_specs[name].page_size_bytes
        for group in groups
        for name in group.layer_names
    }
    assert sorted(name for _, layers in tensors for name in layers) == sorted(layout.specs)
    for page_bytes, layers in tensors:
        assert layers, "a tensor without layers is memory that nobody uses"
        assert {pages[name] for name in layers} == {page_bytes}
        # Page i belongs to one block id, a block id to one group: two layers of a group would
        # overwrite each other.
        assert len({group_of[name] for name in layers}) == len(layers)
    indexer_page, page = A3_TABLE[block_size][1]
    assert bytes_per_block(groups) == 23 * page + 21 * indexer_page


@WHERE_BLOCKS_COUNT_ROWS
@pytest.mark.parametrize(("block_size", "alignment", "hash_size"), [
    (128, 16_384, 8), (64, 8_192, 4), (32, 4_096, 2),
])  # fmt: skip
def test_scheduler_block_size_counts_tokens(block_size, alignment, hash_size):
    scheduler = build_scheduler(
        dsv4_flash_a3(block_size), SchedulerOptions(kv_memory_bytes=16 * GIB)
    )
    assert scheduler.block_size == alignment
    assert scheduler.kv_cache_manager.coordinator.lcm_block_size == alignment
    assert scheduler.kv_cache_manager.block_pool.hash_block_size == hash_size
    pages = A3_TABLE[block_size][1]
    assert scheduler.kv_cache_config.num_blocks == 16 * GIB // (23 * pages[1] + 21 * pages[0])


def test_windows_are_split_as_vllm_splits_kinds_of_layers():
    for first, *others in product(range(1, 7), repeat=3):
        theirs = running_release().planning._approximate_gcd([first, *others], lower_bound=first)
        assert least_padding([first, *others]) == theirs


def test_memory_that_cannot_hold_one_request_is_refused():
    with pytest.raises(ValueError, match="KV cache is needed"):
        build_scheduler(dsv4_flash_a3(128), SchedulerOptions(kv_memory_bytes=GIB))


def test_windowed_pages_are_padded_to_the_compressed_ones():
    """A state page that is smaller than any compressed page would break page sharing."""
    layout = dsv4_flash_a3(128, compress_ratios=(0, 4, 128), num_draft_layers=0)
    name = "model.layers.1.attn.compressor.state_cache"
    bare = {**layout.specs}
    bare[name] = type(bare[name])(
        block_size=8, num_kv_heads=1, head_size=1000, dtype=torch.float32, sliding_window=8
    )
    groups = split_into_groups(group_specs_by_kind(bare))
    padded = next(g for g in groups if name in g.layer_names).kv_cache_spec.kv_cache_specs[name]
    assert bare[name].page_size_bytes == 32_000
    assert padded.page_size_bytes == 131_072


def test_a_layer_without_a_place_is_named():
    layout = dsv4_flash_a3(128, compress_ratios=(0, 4), num_draft_layers=0)
    specs = {
        **layout.specs,
        "odd": FullAttentionSpec(block_size=128, num_kv_heads=1, head_size=8, dtype=torch.bfloat16),
    }
    with pytest.raises(ValueError, match="layer odd: FullAttentionSpec"):
        group_specs_by_kind(specs)


def test_merge_keeps_every_field():
    specs = dsv4_flash_a3(128).specs
    for name in ("model.layers.2.attn.mla", "model.layers.3.attn.mla", "mtp.0.attn.swa_cache"):
        spec = specs[name]
        assert type(spec).merge([spec, spec]) == spec


@WHERE_BLOCKS_COUNT_ROWS
def test_merge_refuses_different_ratios():
    specs = dsv4_flash_a3(128).specs
    c4, c128 = specs["model.layers.2.attn.mla"], specs["model.layers.3.attn.mla"]
    with pytest.raises(AssertionError, match="must have the same spec"):
        type(c4).merge([c4, c128])


def test_start_up_check_and_pool_agree_on_a_block():
    """What the check asks for must be what the pool then allocates."""
    layout = dsv4_flash_a3(32)
    groups = split_into_groups(group_specs_by_kind(layout.specs))
    config = VllmConfig(device_config=DeviceConfig("cpu"))
    assert running_release().pool_bytes_per_block(config, groups) == bytes_per_block(groups)
