# SPDX-License-Identifier: Apache-2.0
"""Compressed rows under both storage semantics."""

import pytest
from vllm.v1.core import single_type_kv_cache_manager as vllm_managers
from vllm.v1.core.kv_cache_utils import BlockHashListWithBlockSize, get_block_hash
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

from tests.release_marks import ON_THE_FIRST_RELEASE, WHERE_BLOCKS_COUNT_ROWS
from tests.ut.core.managed_groups import (
    ROWS,
    TOKENS,
    WINDOW,
    H,
    make_manager,
    make_pool,
    request,
)
from vllm_ascend.releases import running_release
from vllm_ascend.row_layout.compress_manager import CompressAttentionManager
from vllm_ascend.row_layout.specs import AscendMLAAttentionSpec

pytestmark = WHERE_BLOCKS_COUNT_ROWS


def admission_cap(manager):
    return getattr(manager, running_release().admission_cap)


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
