# SPDX-License-Identifier: Apache-2.0
"""Freeing to the front, the scratch/cached split, and caching under a mask."""

import inspect

import pytest
from vllm.distributed.kv_events import BlockStored
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    get_request_block_hasher,
    init_none_hash,
    maybe_convert_block_hash,
)
from vllm.v1.request import Request

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.e2e.core import layouts
from tests.release_marks import where_patched
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler

_POOL = "vllm.v1.core.block_pool:BlockPool"

BLOCK_TOKENS = 4
WHERE_POOLS_PREPEND = pytest.mark.skipif(
    "prepend" not in inspect.signature(BlockPool.free_blocks).parameters,
    reason="this vLLM frees what has no hash to the front, and nothing else",
)


@pytest.fixture(autouse=True)
def _hash_seed():
    init_none_hash(sha256)


def queue_ids(queue: FreeKVCacheBlockQueue) -> list[int]:
    """Walk the queue in both directions and return its ids."""
    forward = [block.block_id for block in queue.get_all_free_blocks()]
    backward = []
    block = queue.fake_free_list_tail.prev_free_block
    while block is not queue.fake_free_list_head:
        backward.append(block.block_id)
        block = block.prev_free_block
    assert backward[::-1] == forward
    assert queue.num_free_blocks == len(forward)
    return forward


def make_request(num_tokens: int = 8 * BLOCK_TOKENS) -> Request:
    return Request(
        request_id="r",
        prompt_token_ids=list(range(num_tokens)),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        block_hasher=get_request_block_hasher(BLOCK_TOKENS, sha256),
    )


def make_pool(num_blocks: int = 16, *, events: bool = False) -> BlockPool:
    return BlockPool(num_blocks, True, BLOCK_TOKENS, enable_kv_cache_events=events)


def test_prepended_blocks_come_first_in_the_order_given():
    blocks = [KVCacheBlock(i) for i in range(6)]
    queue = FreeKVCacheBlockQueue(blocks)
    taken = queue.popleft_n(3)
    queue.prepend_n([taken[2], taken[0]])
    assert queue_ids(queue) == [2, 0, 3, 4, 5]
    assert [queue.popleft().block_id for _ in range(2)] == [2, 0]


def test_prepend_to_an_empty_queue_and_of_nothing():
    blocks = [KVCacheBlock(i) for i in range(2)]
    queue = FreeKVCacheBlockQueue(blocks)
    taken = queue.popleft_n(2)
    queue.prepend_n([])
    assert queue_ids(queue) == []
    queue.prepend_n(taken)
    assert queue_ids(queue) == [0, 1]


@WHERE_POOLS_PREPEND
def test_freed_blocks_go_to_the_end_by_default():
    pool = make_pool(6)
    blocks = pool.get_new_blocks(2)
    pool.free_blocks(reversed(blocks))
    assert queue_ids(pool.free_block_queue) == [3, 4, 5, 2, 1]


@WHERE_POOLS_PREPEND
def test_freed_blocks_go_to_the_front_on_request():
    pool = make_pool(6)
    blocks = pool.get_new_blocks(2)
    pool.free_blocks(reversed(blocks), prepend=True)
    assert queue_ids(pool.free_block_queue) == [2, 1, 3, 4, 5]


@WHERE_POOLS_PREPEND
def test_a_block_with_other_users_stays_used():
    pool = make_pool(6)
    blocks = pool.get_new_blocks(2)
    pool.touch(blocks[:1])
    pool.free_blocks(blocks, prepend=True)
    assert queue_ids(pool.free_block_queue) == [2, 3, 4, 5]
    assert blocks[0].ref_cnt == 1


@where_patched(f"{_POOL}.free_blocks")
@pytest.mark.parametrize("scratch_first", [False, True])
def test_split_puts_blocks_without_a_hash_in_front(scratch_first):
    pool = make_pool(8)
    pool.scratch_first = scratch_first
    blocks = pool.get_new_blocks(4)
    pool.cache_full_blocks(make_request(), blocks, 0, 2, BLOCK_TOKENS, 0)
    pool.free_blocks(reversed(blocks))
    expected = [4, 3, 5, 6, 7, 2, 1] if scratch_first else [5, 6, 7, 4, 3, 2, 1]
    assert queue_ids(pool.free_block_queue) == expected


@where_patched(f"{_POOL}.__init__")
def test_a_new_pool_follows_the_configuration(monkeypatch):
    assert make_pool().scratch_first is False
    monkeypatch.setenv("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "0")
    assert make_pool().scratch_first is True


@WHERE_POOLS_PREPEND
@pytest.mark.parametrize("enable_caching", [True, False])
def test_a_model_of_full_attention_alone_keeps_the_stock_order(monkeypatch, enable_caching):
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", "best")
    options = SchedulerOptions(num_blocks=8, max_model_len=16, enable_prefix_caching=enable_caching)
    pool = build_scheduler(layouts.full_only(), options).kv_cache_manager.block_pool
    assert type(pool) is BlockPool
    pool.free_blocks(reversed(pool.get_new_blocks(3)))
    assert queue_ids(pool.free_block_queue) == [4, 5, 6, 7, 3, 2, 1]


def test_mask_caches_only_what_it_allows():
    pool, request = make_pool(), make_request()
    blocks = pool.get_new_blocks(4)
    pool.cache_full_blocks(
        request, blocks, 0, 4, BLOCK_TOKENS, 0, block_mask=[False, True, False, True]
    )
    assert [block.block_hash is not None for block in blocks] == [False, True, False, True]
    assert not any(block.is_null for block in blocks)
    assert pool.get_cached_block(request.block_hashes[3], [0]) == [blocks[3]]
    assert pool.get_cached_block(request.block_hashes[2], [0]) is None


def test_mask_is_taken_back_when_caching_fails():
    pool, request = make_pool(), make_request()
    blocks = pool.get_new_blocks(4)
    pool.cache_full_blocks(request, blocks, 0, 4, BLOCK_TOKENS, 0)
    with pytest.raises(AssertionError):  # already cached: vLLM asserts half-way
        pool.cache_full_blocks(
            request, blocks, 0, 4, BLOCK_TOKENS, 0, block_mask=[False, True, True, False]
        )
    assert not any(block.is_null for block in blocks)


def test_mask_leaves_real_null_blocks_null():
    pool, request = make_pool(), make_request()
    null = pool.null_block
    blocks = [null, *pool.get_new_blocks(2)]
    pool.cache_full_blocks(request, blocks, 0, 3, BLOCK_TOKENS, 0, block_mask=[False, True, False])
    assert null.is_null and null.block_hash is None


@where_patched(f"{_POOL}.cache_full_blocks")
@pytest.mark.parametrize(
    ("mask", "runs"),
    [
        ([True] * 6, [(0, 6)]),
        ([False] * 6, []),
        ([True, False, True, True, False, True], [(0, 1), (2, 4), (5, 6)]),
        ([False, True, True, False, False, False], [(1, 3)]),
    ],
)
def test_events_describe_exactly_the_cached_blocks(mask, runs):
    """Hashes, tokens and parent of every event belong together (vLLM's own events, given a null
    block in the middle, carry the tokens of blocks that are not in the cache)."""
    pool, request = make_pool(events=True), make_request()
    blocks = pool.get_new_blocks(6)
    pool.cache_full_blocks(request, blocks, 0, 6, BLOCK_TOKENS, 0, block_mask=mask)
    events = pool.take_events()
    hashes = [maybe_convert_block_hash(block_hash) for block_hash in request.block_hashes]
    assert [type(event) for event in events] == [BlockStored] * len(runs)
    for event, (start, end) in zip(events, runs, strict=True):
        assert event.block_hashes == hashes[start:end]
        assert event.token_ids == list(range(start * BLOCK_TOKENS, end * BLOCK_TOKENS))
        assert event.parent_block_hash == (hashes[start - 1] if start else None)
        assert event.block_size == BLOCK_TOKENS


@where_patched(f"{_POOL}.cache_full_blocks")
def test_events_skip_null_blocks_under_a_mask():
    pool, request = make_pool(events=True), make_request()
    blocks = [pool.null_block, *pool.get_new_blocks(2)]
    pool.cache_full_blocks(request, blocks, 0, 3, BLOCK_TOKENS, 0, block_mask=[True] * 3)
    (event,) = pool.take_events()
    assert event.token_ids == list(range(BLOCK_TOKENS, 3 * BLOCK_TOKENS))
