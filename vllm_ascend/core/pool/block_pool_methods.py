# SPDX-License-Identifier: Apache-2.0
"""Block pool operations that vLLM 0.20.2 lacks: freeing to the front, and masked caching.

These functions become methods of vLLM's own classes (see ``patch/engine``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.request import Request

NULL_BLOCK_ID = 0
"""The block that stands where a group has none: the first that a pool takes from its queue."""


def prepend_n(self: FreeKVCacheBlockQueue, blocks: list[KVCacheBlock]) -> None:
    """Put free blocks at the front of the queue: ``blocks[0]`` is handed out next.

    Source: vLLM 0.23.0 ``FreeKVCacheBlockQueue.prepend_n``.
    """
    if not blocks:
        return
    previous = self.fake_free_list_head
    behind = previous.next_free_block
    assert behind is not None, "the fake tail is always linked"
    for block in blocks:
        previous.next_free_block = block
        block.prev_free_block = previous
        previous = block
    previous.next_free_block = behind
    behind.prev_free_block = previous
    self.num_free_blocks += len(blocks)


def free_blocks(
    self: BlockPool, ordered_blocks: Iterable[KVCacheBlock], prepend: bool = False
) -> None:
    """Drop one reference of every block; blocks without any left become free.

    The one to be reused first comes first. ``prepend`` puts all freed blocks at the front of the
    queue, otherwise only those without a hash: nothing can be lost with them.

    Source: vLLM 0.23.0 ``BlockPool.free_blocks``.
    """
    blocks = list(ordered_blocks)
    for block in blocks:
        block.ref_cnt -= 1
    freed = [block for block in blocks if block.ref_cnt == 0 and not block.is_null]
    if prepend:
        self.free_block_queue.prepend_n(freed)
    else:
        self.free_block_queue.prepend_n([block for block in freed if block.block_hash is None])
        self.free_block_queue.append_n([block for block in freed if block.block_hash is not None])


def cache_full_blocks_masked(
    cache_full_blocks: Callable[..., None],
    pool: BlockPool,
    request: Request,
    blocks: list[KVCacheBlock],
    num_cached_blocks: int,
    num_full_blocks: int,
    block_size: int,
    kv_cache_group_id: int,
    block_mask: Sequence[bool],
) -> None:
    """Enter only the blocks that ``block_mask`` allows, through vLLM's own method.

    Blocks left out look like null blocks to it for the length of the call. With KV events on,
    every contiguous run is entered by a call of its own, so that each event's hashes, token ids
    and block size describe the same tokens.

    Args:
        cache_full_blocks: vLLM's ``BlockPool.cache_full_blocks``.
        block_mask: One flag per block in ``[num_cached_blocks, num_full_blocks)``.
    """
    assert len(block_mask) == num_full_blocks - num_cached_blocks
    if pool.enable_kv_cache_events:
        for start, end in _cacheable_runs(blocks, num_cached_blocks, block_mask):
            cache_full_blocks(pool, request, blocks, start, end, block_size, kv_cache_group_id)
        return
    if not any(block_mask):
        return
    masked = zip(blocks[num_cached_blocks:num_full_blocks], block_mask, strict=True)
    hidden = [block for block, allowed in masked if not (allowed or block.is_null)]
    try:
        for block in hidden:
            block.is_null = True
        cache_full_blocks(
            pool, request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id
        )
    finally:
        for block in hidden:
            block.is_null = False


def _cacheable_runs(
    blocks: Sequence[KVCacheBlock], first_block: int, block_mask: Sequence[bool]
) -> Iterator[tuple[int, int]]:
    """Yield the maximal runs ``[start, end)`` of allowed, real blocks, as block ordinals."""
    flags = (allowed and not blocks[i].is_null for i, allowed in enumerate(block_mask, first_block))
    start = first_block
    for cacheable, run in itertools.groupby(flags):
        end = start + len(list(run))
        if cacheable:
            yield start, end
        start = end
