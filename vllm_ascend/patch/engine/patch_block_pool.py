# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/block_pool.py``: freeing to the front, masked caching."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.pool import block_pool_methods as block_pool
from vllm_ascend.patch.features import BLOCK_MASK, RETENTION
from vllm_ascend.patch.table import Patch, changes
from vllm_ascend.prefix_cache_config import load_config

_CLASS = "vllm.v1.core.block_pool:BlockPool"
_FRONT = {**RETENTION, "superseded_by": f"{_CLASS}.free_blocks(prepend)"}
_MASK = {**BLOCK_MASK, "superseded_by": f"{_CLASS}.cache_full_blocks(block_mask)"}


@changes(f"{_CLASS}.__init__", _FRONT)
def wrap_init(self: BlockPool, *args, original: Callable, **kwargs) -> None:
    """A pool without a coordinator follows the configuration."""
    original(self, *args, **kwargs)
    # A coordinator of vLLM's makes the pool stock again.
    self.scratch_first = load_config().changes_caching


@changes(f"{_CLASS}.free_blocks", _FRONT)
def wrap_free_blocks(
    self: BlockPool,
    ordered_blocks: Iterable[KVCacheBlock],
    prepend: bool = False,
    *,
    original: Callable,
) -> None:
    """Blocks of running requests must not push cached prefixes out.

    Drop one reference of every block; see ``core/pool/block_pool_methods.py``.

    In a stock pool, and unless the front is asked for, that is vLLM's own.
    """
    if prepend or self.scratch_first:
        block_pool.free_blocks(self, ordered_blocks, prepend)
    else:
        original(self, ordered_blocks)


@changes(f"{_CLASS}.cache_full_blocks", _MASK)
def wrap_cache_full_blocks(
    self: BlockPool,
    request: Request,
    blocks: list[KVCacheBlock],
    num_cached_blocks: int,
    num_full_blocks: int,
    block_size: int,
    kv_cache_group_id: int,
    block_mask: Sequence[bool] | None = None,
    *,
    original: Callable,
) -> None:
    """Blocks that can never serve a hit are not cached.

    Enter full blocks; with ``block_mask``, only those it allows.
    """
    where = (num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id)
    if block_mask is None:
        original(self, request, blocks, *where)
    else:
        block_pool.cache_full_blocks_masked(original, self, request, blocks, *where, block_mask)


PATCHES: tuple[Patch, ...] = (
    wrap_init,
    wrap_free_blocks,
    wrap_cache_full_blocks,
)
