# SPDX-License-Identifier: Apache-2.0
"""The worker's half of a partial hit: whole pages copied before anything else touches the cache.

A hit that ends inside a block gets a private copy of it. All groups share the raw tensors, and
page i of each belongs to block i, so a block is copied by copying its page in every one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from vllm_ascend.core.block_copies import KVCacheBlockCopy

NULL_BLOCK_ID = 0


class BlockCopyError(RuntimeError):
    """A copy that would destroy rows; raised before any byte has moved."""


def unique_pages(raw_tensors: Iterable[torch.Tensor], num_blocks: int) -> list[torch.Tensor]:
    """Return every raw tensor once, as ``[num_blocks, bytes per page]``.

    Args:
        raw_tensors: One-dimensional byte tensors; layers that share memory share a tensor.
        num_blocks: Blocks of the pool.

    Raises:
        BlockCopyError: A tensor is not made of ``num_blocks`` pages of equal size.
    """
    pages: dict[int, torch.Tensor] = {}
    for tensor in raw_tensors:
        if tensor.numel() % num_blocks:
            raise BlockCopyError(
                f"a KV cache tensor of {tensor.numel()} bytes is not {num_blocks} pages"
            )
        pages.setdefault(tensor.data_ptr(), tensor.view(num_blocks, -1))
    return list(pages.values())


def copy_blocks(pages: Sequence[torch.Tensor], copies: Sequence[KVCacheBlockCopy]) -> None:
    """Copy pages, one batched operation per tensor, on the current stream.

    Args:
        pages: Tensors ``[num_blocks, bytes per page]``.
        copies: No destination may be a source or appear twice.

    Raises:
        BlockCopyError: See :func:`check_copies`; or there are no pages, because the runner's KV
            cache was not allocated where copies can reach it.
    """
    if not copies:
        return
    if not pages:
        raise BlockCopyError(
            "a block copy was asked for, but this runner's KV cache was not allocated where "
            "copies can reach it: unset VLLM_ASCEND_DSV4_PARTIAL_HITS"
        )
    check_copies(copies, len(pages[0]))
    sources, destinations = zip(*copies, strict=True)
    by_device: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
    for page in pages:
        if page.device not in by_device:
            by_device[page.device] = (
                torch.tensor(sources, dtype=torch.long, device=page.device),
                torch.tensor(destinations, dtype=torch.long, device=page.device),
            )
        source_ids, destination_ids = by_device[page.device]
        page.index_copy_(0, destination_ids, page.index_select(0, source_ids))


def check_copies(copies: Sequence[KVCacheBlockCopy], num_blocks: int) -> None:
    """Check that copies name blocks of the pool, and do not overwrite each other.

    Raises:
        BlockCopyError: Names the first copy that does not.
    """
    sources = {copy[0] for copy in copies}
    destinations: set[int] = set()
    for source, destination in copies:
        problem = None
        if not (NULL_BLOCK_ID < source < num_blocks and NULL_BLOCK_ID < destination < num_blocks):
            problem = f"blocks are 1 to {num_blocks - 1}"
        elif destination in sources:
            problem = "the destination is a source"
        elif destination in destinations:
            problem = "the destination is written twice"
        if problem:
            raise BlockCopyError(f"block copy {source} -> {destination}: {problem}")
        destinations.add(destination)
