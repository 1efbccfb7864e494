# SPDX-License-Identifier: Apache-2.0
"""The worker's half of a partial hit: whole pages copied before anything else touches the cache.

A hit that ends inside a block gets a private copy of it. All groups share the raw tensors, and
page i of each belongs to block i, so a block is copied by copying its page in every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.core.pool.block_pool_methods import NULL_BLOCK_ID


class BlockCopyError(RuntimeError):
    """A copy that would destroy rows; raised before any byte has moved."""


# What a runner allocates for a layer: one tensor, or one for each part of its rows.
RawTensors: TypeAlias = "torch.Tensor | tuple[torch.Tensor | None, ...]"


def unique_pages(raw_tensors: Iterable[RawTensors], num_blocks: int) -> list[torch.Tensor]:
    """Return every raw tensor once, as ``[num_blocks, bytes per page]``.

    Args:
        raw_tensors: One-dimensional byte tensors of the layers; layers that share memory share a
            tensor.
        num_blocks: Blocks of the pool.

    Raises:
        BlockCopyError: A tensor is not made of ``num_blocks`` pages of equal size.
    """
    pages: dict[int, torch.Tensor] = {}
    for tensor in _flat(raw_tensors):
        if tensor.numel() % num_blocks:
            raise BlockCopyError(
                f"a KV cache tensor of {tensor.numel()} bytes is not {num_blocks} pages"
            )
        pages.setdefault(tensor.data_ptr(), tensor.view(num_blocks, -1))
    return list(pages.values())


def _flat(raw_tensors: Iterable[RawTensors]) -> Iterator[torch.Tensor]:
    for tensors in raw_tensors:
        parts = tensors if isinstance(tensors, tuple) else (tensors,)
        yield from (part for part in parts if part is not None)


def copy_blocks(
    pages: Sequence[torch.Tensor],
    copies: Sequence[KVCacheBlockCopy],
    *,
    pin_memory: bool = False,
) -> None:
    """Copy pages, one batched operation per tensor, on the current stream, without waiting.

    Args:
        pages: Tensors ``[num_blocks, bytes per page]``.
        copies: No destination may be a source or appear twice.
        pin_memory: Whether the host can pin memory, so that block ids need not be waited for.

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
    block_ids = torch.tensor(copies, dtype=torch.long)
    if pin_memory:
        block_ids = block_ids.pin_memory()
    by_device: dict[torch.device, torch.Tensor] = {}
    for page in pages:
        if page.device not in by_device:
            by_device[page.device] = block_ids.to(page.device, non_blocking=True)
        sources, destinations = by_device[page.device].unbind(1)
        page.index_copy_(0, destinations, page.index_select(0, sources))


def execute_with_copies(
    runner: Any, copies: Sequence[KVCacheBlockCopy], execute: Callable[[], Any]
) -> Any:
    """Execute a step that has copies to make, and check that the runner has made them.

    Args:
        runner: The worker's model runner, whatever its class; ``None`` if it has none.
        execute: Executes the step.

    Raises:
        BlockCopyError: It does not know of copies (nothing was executed then), or made none.
    """
    before = getattr(runner, "num_block_copies", None)
    result = None if before is None else execute()
    if before is None or runner.num_block_copies != before + len(copies):
        raise BlockCopyError(
            f"{type(runner).__name__} makes no block copies, so requests would compute from blocks "
            "that nobody has filled: set VLLM_ASCEND_DSV4_PARTIAL_HITS=0"
        )
    return result


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
