# SPDX-License-Identifier: Apache-2.0
"""Computes the blocks of tails, and which blocks of a request may serve a hit: ints only.

Whatever is in no tail can never serve a hit; nobody enters it. vLLM's managers ask for the same as
a mask of flags.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence

from vllm_ascend.core.policy.boundaries import kept_boundaries, replay_boundary


def tail_ordinals(
    boundaries: Sequence[int],
    tail: Callable[[int], range],
    *,
    block_tokens: int,
    tail_length: int | None,
) -> Sequence[int]:
    """Return the ordinals of the tails of ascending boundaries: ascending too, each once.

    Args:
        tail: Boundary -> the ordinals of its tail.
        tail_length: Blocks of a tail, where it is the same at all boundaries but the first few.
    """
    if tail_length == 1:  # by far the most, and thousands in a step
        return [boundary // block_tokens - 1 for boundary in boundaries]
    if not boundaries:
        return ()
    touching = (tail_length or 0) * block_tokens
    if all(b - a <= touching for a, b in itertools.pairwise(boundaries)):
        # A chunk has hundreds of boundaries, and all of them are spare.
        return range(tail(boundaries[0]).start, tail(boundaries[-1]).stop)
    ordinals: list[int] = []
    for span in map(tail, boundaries):
        first = max(span.start, ordinals[-1] + 1) if ordinals else span.start
        ordinals.extend(range(first, span.stop))
    return ordinals


def without_holes(
    boundaries: Sequence[int], holes: Sequence[int], tail: Callable[[int], range]
) -> list[int]:
    """Return the boundaries none of whose tail's ordinals is among the ascending ``holes``."""

    def is_whole(ordinals: range) -> bool:
        following = bisect_left(holes, ordinals.start)
        return following == len(holes) or holes[following] >= ordinals.stop

    return [boundary for boundary in boundaries if is_whole(tail(boundary))]


def reachable_blocks(
    start_block: int,
    end_block: int,
    *,
    block_tokens: int,
    tail_length: int,
    alignment: int,
    interval: int | None,
    num_prompt_tokens: int | None,
    peek_blocks: int = 0,
) -> list[bool] | None:
    """Return for each block in ``[start_block, end_block)`` whether it may serve a kept boundary.

    ``None`` when every block is kept.

    Args:
        tail_length: Blocks in a boundary's tail, peeked ones included.
        alignment: Boundaries are multiples of this, in tokens; a multiple of ``block_tokens``.
        interval: ``None`` keeps every boundary, 0 none but the replay boundary, N also every
            multiple of N.
        num_prompt_tokens: Whose replay boundary is kept if there is an interval; ``None``: unknown.
        peek_blocks: Blocks behind the boundary that belong to its tail.
    """
    spacing = alignment if interval is None else interval
    if spacing and tail_length >= spacing // block_tokens:
        return None  # the tails touch each other

    def tail(boundary: int) -> range:
        end = boundary // block_tokens + peek_blocks
        return range(max(end - tail_length, 0), end)

    replay = 0
    if interval is not None and num_prompt_tokens is not None:
        replay = replay_boundary(num_prompt_tokens, alignment, lookahead=1)
    # The tails of these, and of no others, reach into the range.
    first = max((start_block - peek_blocks) * block_tokens, 0)
    last = (end_block - peek_blocks + tail_length) * block_tokens
    boundaries = kept_boundaries(
        first, last, alignment=alignment, interval=interval, singled_out=(replay,)
    )
    mask = [False] * (end_block - start_block)
    length = None if peek_blocks else tail_length
    for ordinal in tail_ordinals(boundaries, tail, block_tokens=block_tokens, tail_length=length):
        if start_block <= ordinal < end_block:
            mask[ordinal - start_block] = True
    return mask
