# SPDX-License-Identifier: Apache-2.0
"""How long a free block stays cached, its rank, and the ranks of a request's boundaries.

A boundary has a rank, and so have the blocks of its tail.

Example: blocks of 32 tokens, tails of 4 blocks, alignment 4096, a prompt of 10,000 tokens of which
[4096, 12288) have just been scheduled, interval 0::

    boundary    rank       its tail, by ordinal
    8192        KEPT       [252, 256)               the replay boundary, 9999 // 4096 * 4096
    12288       ROLLING    [380, 384)               where the next turn would resume
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

from vllm_ascend.core.policy.boundaries import align_down


class Rank(IntEnum):
    """The order in which free blocks are reused: blocks of a lower rank first."""

    SCRATCH = 0  # nothing is lost
    SPARE = 1  # a tail that nothing asked to keep, first in first out
    SPARE_4 = 2  # the same of every fourth boundary
    SPARE_16 = 3
    SPARE_64 = 4
    MARGINAL = 5  # adds little to a kept one, or another has its place, first in first out
    ROLLING = 6  # a prefix, or a tail at which a running request would be resumed now
    KEPT = 7  # a prefix that was hit, or a kept tail, least recently used first
    PROTECTED = 8  # the same of a prompt that came again, least recently used first
    PINNED = 9  # a window that was left in the middle of a prompt, oldest first


# Ranks of spare tails -> every how many boundaries have it or a higher one.
SPARE_SPACING = {Rank.SPARE: 1, Rank.SPARE_4: 4, Rank.SPARE_16: 16, Rank.SPARE_64: 64}
CONNECTOR_SPARE_SPACING = SPARE_SPACING[Rank.SPARE_4]
"""A connector that takes spare tails takes those of every so many boundaries."""
# What is counted. Spare are the ranks from SPARE to MARGINAL.
TIERS = (Rank.SCRATCH, Rank.SPARE, Rank.KEPT, Rank.PROTECTED, Rank.PINNED)
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
