# SPDX-License-Identifier: Apache-2.0
"""The blocks of one hit: which are copied, which its windows rest on, what is needed behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.retention.request_record import TailBlock

# A hit as a look-up returns it: per group, the blocks from the first token on.
Blocks = tuple[Sequence[KVCacheBlock], ...]


def copied_groups(groups: Iterable[Group], blocks: Blocks, hit: int) -> list[Group]:
    """Return the groups whose last block a hit of ``hit`` tokens ends inside."""
    return [
        group
        for group in groups
        if group.ends_inside and len(blocks[group.id]) * group.block_tokens > hit
    ]


def tail_of_hit(groups: Iterable[Group], blocks: Blocks, hit: int) -> list[TailBlock]:
    """Return what a hit of ``hit`` tokens rests on in the groups that forget."""
    tail: list[TailBlock] = []
    for group in groups:
        for ordinal in group.tail(hit):
            block = blocks[group.id][ordinal]
            assert block.block_hash is not None, "a hit rests on cached blocks"
            tail.append(TailBlock(block, block.block_hash, ordinal * group.block_tokens))
    return tail


def blocks_in_windows(
    groups: Iterable[Group], blocks: Blocks, num_tokens: int
) -> list[KVCacheBlock]:
    """Return those blocks of a hit that no window has left behind at ``num_tokens`` tokens."""
    held: list[KVCacheBlock] = []
    for group in groups:
        skipped = group.manager.get_num_skipped_tokens(num_tokens) // group.block_tokens
        held += blocks[group.id][skipped:]
    return held


def blocks_for_next_chunk(
    group: Group,
    request_id: str,
    num_tokens: int,
    hit_blocks: Sequence[KVCacheBlock],
    total_computed_tokens: int,
    num_tokens_main_model: int,
    *,
    most: int | None,
    is_sparse: bool,
) -> int:
    """Return the blocks that one group needs to let a request in, or to go on behind its hit.

    vLLM caps a windowed group's blocks counted from the request's first token, and then deducts
    those in front of the window: behind a long hit nothing is left, the request is let in without
    memory for its next chunk, and preempts itself over and over. Here the cap bounds what is
    needed behind the hit.

    Args:
        num_tokens: Tokens that the request must have room for, drafts included.
        most: The most blocks that the request will hold of the group, to let it in; ``None``: all
            that it needs are counted.
        is_sparse: Null blocks stand where nobody reads the group's rows.
    """
    # What a connector has loaded is held already, and given back as the window moves on.
    held = group.manager.req_to_blocks.get(request_id, ())
    room = None if most is None else max(most - sum(not block.is_null for block in held), 0)
    if is_sparse and room is not None:
        return room  # which blocks will be real depends on how the prompt is cut into steps
    blocks = group.manager.get_num_blocks_to_allocate(
        request_id, num_tokens, hit_blocks, total_computed_tokens, num_tokens_main_model
    )
    return blocks if room is None else min(blocks, room)
