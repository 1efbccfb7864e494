# SPDX-License-Identifier: Apache-2.0
"""Which manager a group gets, and the methods added to vLLM's managers."""

import inspect

import pytest
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.single_type_kv_cache_manager import (
    ChunkedLocalAttentionManager,
    CrossAttentionManager,
    FullAttentionManager,
    MambaManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    SlidingWindowMLASpec,
    UniformTypeKVCacheSpecs,
)

from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS, where_patched
from tests.ut.core.managed_groups import ROWS, SHAPE, WINDOW, make_manager, make_pool, request
from vllm_ascend.core.kv_cache_interface import (
    AscendMLAAttentionSpec,
    AscendSlidingWindowMLASpec,
)
from vllm_ascend.core.layout.specs import is_compressor_state, tokens_per_block
from vllm_ascend.dry_run.layouts import dsv4_flash_a3, dsv4_flash_gpu
from vllm_ascend.row_layout.compress_manager import CompressAttentionManager

_BASE = "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager"
pytestmark = WHERE_BLOCKS_COUNT_ROWS


def test_managers_are_chosen_by_what_a_spec_is():
    mla = AscendMLAAttentionSpec(block_size=4, compress_ratio=1, **SHAPE)
    window = AscendSlidingWindowMLASpec(block_size=4, sliding_window=8, **SHAPE)
    chunked = ChunkedLocalAttentionSpec(block_size=4, attention_chunk_size=8, **SHAPE)
    packed = UniformTypeKVCacheSpecs.from_specs({"x": ROWS, "y": ROWS})
    assert type(make_manager(mla)) is FullAttentionManager
    assert type(make_manager(window)) is SlidingWindowManager
    assert type(make_manager(chunked)) is ChunkedLocalAttentionManager
    assert type(make_manager(packed)) is CompressAttentionManager
    assert type(make_manager(FullAttentionSpec(block_size=4, **SHAPE))) is FullAttentionManager
    with pytest.raises(KeyError, match="no KV cache manager for KVCacheSpec"):
        make_manager(KVCacheSpec(block_size=4))


def test_tokens_per_block_of_both_layouts():
    gpu, a3 = dsv4_flash_gpu().specs, dsv4_flash_a3(128).specs
    c4, c128 = "model.layers.2.attn.mla", "model.layers.3.attn.mla"
    assert (tokens_per_block(gpu[c4]), tokens_per_block(gpu[c128])) == (256, 256)
    assert (tokens_per_block(a3[c4]), tokens_per_block(a3[c128])) == (512, 16_384)


@pytest.mark.parametrize("layout", [dsv4_flash_a3(128), dsv4_flash_gpu()], ids=lambda x: x.name)
def test_compressor_state_is_recognised(layout):
    states = {name for name, spec in layout.specs.items() if is_compressor_state(spec)}
    assert states == {name for name in layout.specs if name.endswith("state_cache")}


# vLLM's own managers


@where_patched(f"{_BASE}.cache_blocks")
@pytest.mark.parametrize("manager", [SingleTypeKVCacheManager, MambaManager, CrossAttentionManager])
def test_every_cache_blocks_takes_the_retention_arguments(manager):
    parameters = inspect.signature(manager.cache_blocks).parameters
    assert list(parameters)[1:] == [
        "request",
        "num_tokens",
        "retention_interval",
        "alignment_tokens",
    ]


def test_cross_attention_still_refuses_to_cache():
    spec = CrossAttentionSpec(block_size=4, **SHAPE)
    manager = make_manager(spec)
    with pytest.raises(ValueError, match="prefix caching is disabled"):
        manager.cache_blocks(request("a", [1]), 4, retention_interval=0)


def test_full_attention_masks_nothing():
    spec = FullAttentionSpec(block_size=4, **SHAPE)
    arguments = (0, 8, 4, spec, False, 0, 32)
    assert FullAttentionManager.reachable_block_mask(*arguments) is None


def mask_text(*arguments) -> str:
    mask = SlidingWindowManager.reachable_block_mask(*arguments)
    return "".join("01"[flag] for flag in mask)


def test_window_mask():
    # Alignment 16 = 4 blocks; the window needs 2 blocks.
    assert mask_text(0, 12, 16, WINDOW, False) == "001100110011"
    assert mask_text(0, 12, 16, WINDOW, False, 0, 40) == "000000110000"
    assert mask_text(0, 12, 16, WINDOW, False, 32, 20) == "001100110000"
    assert mask_text(5, 12, 16, WINDOW, False) == "0110011"
    # EAGLE finds a boundary by the block behind it.
    assert mask_text(0, 12, 16, WINDOW, True) == "001110111011"


def test_window_mask_without_alignment_is_none():
    assert SlidingWindowManager.reachable_block_mask(0, 8, None, WINDOW, False) is None
    assert SlidingWindowManager.reachable_block_mask(0, 8, 8, WINDOW, False) is None


def test_contiguous_blocks():
    assert SlidingWindowManager._contiguous_blocks_for_hit(8, 4, False) == 2
    assert SlidingWindowManager._contiguous_blocks_for_hit(8, 4, True) == 3


def free_ids(pool: BlockPool) -> list[int]:
    return [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]


@where_patched(f"{_BASE}.cache_blocks")
@pytest.mark.parametrize("split", [False, True])
def test_window_free_and_skip_follow_the_split(split, monkeypatch):
    """Scratch to the front, cached to the end; with everything unset all goes to the end."""
    if split:
        monkeypatch.setenv("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "0")
    pool = make_pool(10)
    manager = make_manager(WINDOW, pool)
    prompt = request("a", list(range(24)))
    manager.allocate_new_blocks("a", 24, 24)  # blocks 1..6
    # Only the tail of 16 (blocks 3 and 4) is cached.
    manager.cache_blocks(prompt, 24, retention_interval=0, alignment_tokens=16)
    manager.remove_skipped_blocks("a", 20)  # blocks 1..3 fall out of the window
    assert free_ids(pool) == ([2, 1, 7, 8, 9, 3] if split else [7, 8, 9, 3, 2, 1])
    manager.free("a")
    expected = [6, 5, 2, 1, 7, 8, 9, 3, 4] if split else [7, 8, 9, 3, 2, 1, 6, 5, 4]
    assert free_ids(pool) == expected


def test_stock_window_specs_are_left_to_vllm():
    spec = SlidingWindowMLASpec(block_size=4, sliding_window=8, **SHAPE)
    assert type(make_manager(spec)) is SlidingWindowManager
