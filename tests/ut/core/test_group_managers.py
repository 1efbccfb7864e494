# SPDX-License-Identifier: Apache-2.0
"""Compressed rows under both storage semantics, and the methods added to vLLM's managers."""

import inspect

import pytest
import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import single_type_kv_cache_manager as vllm_managers
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHashListWithBlockSize,
    get_block_hash,
    get_request_block_hasher,
)
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
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.release_marks import ON_THE_FIRST_RELEASE, WHERE_BLOCKS_COUNT_ROWS, where_patched
from tests.ut.core.helpers import make_request
from vllm_ascend.core.group_managers import (
    CompressAttentionManager,
    get_manager_for_kv_cache_spec,
)
from vllm_ascend.core.kv_cache_interface import (
    AscendMLAAttentionSpec,
    AscendSlidingWindowMLASpec,
)
from vllm_ascend.core.layout.dsv4_specs import compressed_spec
from vllm_ascend.core.layout.specs import is_compressor_state, tokens_per_block
from vllm_ascend.dry_run.layouts import dsv4_flash_a3, dsv4_flash_gpu
from vllm_ascend.releases import running_release

_BASE = "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager"
pytestmark = WHERE_BLOCKS_COUNT_ROWS
SHAPE = dict(num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
# Both store 4 rows for 16 tokens; vLLM's spec says so in tokens, Ascend's in rows.
ROWS = compressed_spec(4, 4, **SHAPE)
TOKENS = MLAAttentionSpec(block_size=16, **{running_release().ratio_field: 4}, **SHAPE)
WINDOW = SlidingWindowSpec(block_size=4, sliding_window=8, **SHAPE)
H = 4


def make_pool(num_blocks: int = 32) -> BlockPool:
    return BlockPool(num_blocks, True, H)


def make_manager(spec: KVCacheSpec, pool: BlockPool | None = None, **kwargs):
    return get_manager_for_kv_cache_spec(
        spec, block_pool=pool or make_pool(), enable_caching=True, kv_cache_group_id=0, **kwargs
    )


def request(name: str, token_ids: list[int]):
    return make_request(name, token_ids, get_request_block_hasher(H, sha256))


@ON_THE_FIRST_RELEASE
def test_rows_are_never_counted_as_tokens(monkeypatch):
    """Even where another module has entered Ascend's class in vLLM's map."""
    monkeypatch.setitem(
        vllm_managers.spec_manager_map, AscendMLAAttentionSpec, FullAttentionManager
    )
    manager = vllm_managers.get_manager_for_kv_cache_spec(
        ROWS, 64, 64, block_pool=make_pool(), enable_caching=True, kv_cache_group_id=0
    )
    assert isinstance(manager, CompressAttentionManager)


@pytest.mark.parametrize("spec", [ROWS, TOKENS])
def test_compressed_sizes(spec):
    manager = make_manager(spec)
    assert isinstance(manager, CompressAttentionManager)
    assert (manager.block_size, manager.compress_ratio, manager.tokens_per_block) == (4, 4, 16)


@pytest.mark.parametrize("spec", [ROWS, TOKENS])
def test_a_block_is_allocated_with_its_first_row(spec):
    manager = make_manager(spec)
    for num_tokens, num_blocks in [(3, 0), (4, 1), (16, 1), (19, 1), (20, 2), (64, 4)]:
        manager.allocate_new_blocks("r", num_tokens, num_tokens)
        assert len(manager.req_to_blocks["r"]) == num_blocks, num_tokens


@pytest.mark.parametrize("spec", [ROWS, TOKENS])
def test_a_block_is_cached_under_the_hash_of_exactly_its_tokens(spec):
    manager = make_manager(spec)
    prompt = request("a", list(range(40)))
    manager.allocate_new_blocks("a", 40, 40)
    manager.cache_blocks(prompt, 31)
    manager.cache_blocks(prompt, 40, retention_interval=0, alignment_tokens=16)
    expected = BlockHashListWithBlockSize(prompt.block_hashes, H, 16)
    cached = [block.block_hash for block in manager.req_to_blocks["a"]]
    assert [key and get_block_hash(key) for key in cached] == [expected[0], expected[1], None]


def test_external_tokens_get_room_for_their_rows():
    manager = make_manager(ROWS)
    manager.allocate_new_computed_blocks("a", [], 0, 37)
    assert len(manager.req_to_blocks["a"]) == 3  # 9 rows
    assert manager.num_cached_block["a"] == 0


def admission_cap(manager):
    return getattr(manager, running_release().admission_cap)


def test_the_admission_cap_counts_rows():
    assert admission_cap(make_manager(ROWS, max_model_len=1600)) == 101
    manager = make_manager(WINDOW, max_num_batched_tokens=64, max_model_len=1600)
    assert admission_cap(manager) == WINDOW.max_admission_blocks_per_request(64, 1600)


@pytest.mark.parametrize(
    ("use_eagle", "alignment", "expected"), [(False, 16, 3), (True, 16, 2), (False, 32, 2)]
)
def test_longest_hit(use_eagle, alignment, expected):
    pool = make_pool()
    manager = make_manager(ROWS, pool)
    prompt = request("a", list(range(52)))
    manager.allocate_new_blocks("a", 52, 52)
    manager.cache_blocks(prompt, 52)
    (hit,) = CompressAttentionManager.find_longest_cache_hit(
        prompt.block_hashes, 51, [0], pool, ROWS, use_eagle, alignment
    )
    assert hit == manager.req_to_blocks["a"][:expected]


def test_a_different_prompt_does_not_hit():
    """Hashes of the wrong token range would let a prompt that differs at token 9 hit block 0."""
    pool = make_pool()
    manager = make_manager(ROWS, pool)
    manager.allocate_new_blocks("a", 32, 32)
    manager.cache_blocks(request("a", list(range(32))), 32)
    changed = list(range(32))
    changed[9] = 77
    (hit,) = CompressAttentionManager.find_longest_cache_hit(
        request("b", changed).block_hashes, 32, [0], pool, ROWS, False, 16
    )
    assert hit == []


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
