# SPDX-License-Identifier: Apache-2.0
"""Orders the blocks that a request gives back."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.policy.units import Ordinal
from vllm_ascend.core.retention.request_record import RequestRecord


class PlacedBlocks:
    """Blocks, and of each the first token whose rows it holds.

    Two lists and no pairs: a request of a million tokens gives back thousands of blocks at once,
    and as many new objects would wake the garbage collector, which walks through the token ids of
    all requests.
    """

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.blocks: list[KVCacheBlock] = []

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def append(self, start_token: int, block: KVCacheBlock) -> None:
        """Add a block."""
        self.starts.append(start_token)
        self.blocks.append(block)

    def extend(self, others: PlacedBlocks) -> None:
        """Add other blocks behind these."""
        self.starts += others.starts
        self.blocks += others.blocks

    def deep_first(self) -> list[KVCacheBlock]:
        """Return the blocks in the order in which they are freed; equally deep ones as given.

        A hit needs every group, so the groups' chains have to shrink together: were one group
        freed after another, pressure would first empty one of them and leave the rest useless.
        """
        order = sorted(range(len(self.starts)), key=self.starts.__getitem__, reverse=True)
        return [self.blocks[place] for place in order]


def leave_behind(
    group: Group, record: RequestRecord, request_id: str, num_tokens: int, null_block: KVCacheBlock
) -> PlacedBlocks:
    """Replace what a retained group's window has left by null blocks, and return it::

        tokens that are held  [held.start(num_tokens), num_tokens)
        blocks left behind    [0, held.start(num_tokens) // block_tokens)

    The record is told how far that was, and before which number of tokens the window leaves
    nothing more behind; ``num_tokens`` are computed for sure.
    """
    assert group.held is not None, "only groups that forget leave blocks behind"
    first = record.freed.get(group.id, 0)
    skipped = max(group.held.start(num_tokens) // group.block_tokens, first)
    next_free = group.held.end_of_use((skipped + 1) * group.block_tokens - 1)
    record.next_free = min(record.next_free, next_free)
    blocks = group.manager.req_to_blocks.get(request_id, [])
    end = min(skipped, len(blocks))
    if first >= end:
        return PlacedBlocks()
    left = _placed(group, blocks[first:end], first, null_block)
    blocks[first:end] = [null_block] * (end - first)
    record.freed[group.id] = Ordinal(end)
    return left


def take_remaining_blocks(
    group: Group, record: RequestRecord | None, request_id: str, null_block: KVCacheBlock
) -> PlacedBlocks:
    """Take away and return what an ended request still holds in a group."""
    blocks = group.manager.req_to_blocks.pop(request_id, [])
    first = record.freed.get(group.id, 0) if record is not None else 0
    return _placed(group, blocks[first:], first, null_block)


def _placed(
    group: Group, blocks: Sequence[KVCacheBlock], first: int, null_block: KVCacheBlock
) -> PlacedBlocks:
    """Return all but null blocks with their places; ``first`` is the ordinal of the first."""
    placed, tokens = PlacedBlocks(), group.block_tokens
    placed.starts = [i * tokens for i, b in enumerate(blocks, first) if b is not null_block]
    placed.blocks = [block for block in blocks if block is not null_block]
    return placed
