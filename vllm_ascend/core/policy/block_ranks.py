# SPDX-License-Identifier: Apache-2.0
"""Computes which blocks of a request may serve a hit, and their ranks: arithmetic on ints only.

A boundary has a rank, and so have the blocks of its tail. Whatever is in no tail can never serve a
hit; nobody enters it. vLLM's managers ask for the same as a mask of flags.

Example: blocks of 32 tokens, tails of 4 blocks, alignment 4096, a prompt of 10,000 tokens of which
[4096, 12288) have just been scheduled, interval 0::

    boundary    rank       its tail, by ordinal
    8192        KEPT       [252, 256)               the replay boundary, 9999 // 4096 * 4096
    12288       ROLLING    [380, 384)               where the next turn would resume
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from vllm_ascend.core.policy.boundaries import align_down, kept_boundaries, replay_boundary
from vllm_ascend.core.policy.ranks import SPARE_SPACING, Rank

# Of boundaries by ordinal, until it repeats.
_SPARE_RANKS = tuple(
    max(rank for rank, spacing in SPARE_SPACING.items() if not ordinal % spacing)
    for ordinal in range(max(SPARE_SPACING.values()))
)


def ranked_boundaries(
    start: int,
    end: int,
    *,
    alignment: int,
    kept: Sequence[int],
    rolling: Iterable[int],
    marginal: Iterable[int] = (),
    keeps_spares: bool,
    spare_unit: int,
    rank: Rank = Rank.KEPT,
) -> dict[Rank, list[int]]:
    """Return the boundaries in ``(start, end]`` that have tails, by rank.

    ===================  ==========================================================
    rank                 boundaries, each once, ascending
    ===================  ==========================================================
    ``SPARE``            all multiples of ``alignment`` that are none of the others
    ``SPARE_4``, ...     of these every fourth, 16th and 64th multiple of ``spare_unit``
    ``MARGINAL``         ``marginal``, but for those rolling or kept
    ``ROLLING``          ``rolling``, but for those kept
    ``rank``             ``kept``
    ===================  ==========================================================

    Args:
        kept: See :func:`~vllm_ascend.core.policy.boundaries.kept_boundaries`.
        rolling: Boundaries at which the request would be resumed, were it to end now.
        marginal: Boundaries shortly behind a kept one.
        keeps_spares: Whether there are spare tails; without them the first three rows are missing.
        spare_unit: See :func:`spare_rank`.
        rank: That of kept boundaries.
    """
    behind = [b for b in rolling if start < b <= end and b not in kept]
    ranked = {Rank.ROLLING: behind, rank: list(kept)}
    if not keeps_spares:
        return ranked
    close = sorted({b for b in marginal if start < b <= end}.difference(kept, behind))
    first = align_down(start, alignment) + alignment
    spares = set(range(first, end + 1, alignment)).difference(kept, behind, close)
    by_rank: dict[Rank, list[int]] = {rank: [] for rank in SPARE_SPACING}
    for boundary in sorted(spares):
        by_rank[spare_rank(boundary, spare_unit)].append(boundary)
    return {**by_rank, Rank.MARGINAL: close, **ranked}


def spare_unit(alignment: int, tail_tokens: int) -> int:
    """Return how far apart boundaries are, in tokens, whose tails have no block in common.

    A power of two times the alignment: the tokens of prompts are round as well.
    """
    unit = alignment
    while unit < tail_tokens:
        unit *= 2
    return unit


def spare_rank(boundary: int, unit: int) -> Rank:
    """Return the rank of a boundary's spare tail, with boundaries counted in units.

    There are far more of them than memory is idle. Those of round boundaries stay longest, so that
    what is left covers many prompts, and each at even distances.
    """
    ordinal, rest = divmod(boundary, unit)
    return Rank.SPARE if rest else _SPARE_RANKS[ordinal % len(_SPARE_RANKS)]


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
