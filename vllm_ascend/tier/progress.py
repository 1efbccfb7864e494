# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's half knows of one request, and the runs of rows that move for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.policy.boundaries import PromptBoundaries
from vllm_ascend.core.pool.block_pool_methods import NULL_BLOCK_ID
from vllm_ascend.tier.layout import GroupLayout, TierLayout
from vllm_ascend.tier.orders import Run, Segment, ids_between

Tables = Sequence[Sequence[KVCacheBlock]]
"""A request's blocks, by group."""


class Tail(NamedTuple):
    """A boundary's tail that is to be stored.

    Attributes:
        boundary: In tokens.
        rank: See ``tail_choice``.
        rolls: It takes the place of the last one of its answer.
    """

    boundary: int
    rank: int
    rolls: bool = False


@dataclass(eq=False)
class Progress:
    """One request that runs, in tokens if not said otherwise.

    Attributes:
        next_unit: Units before it are dealt with: stored, or known to be there.
        passed: Boundaries up to here have been dealt with.
        junction: Where it left what is stored; 0: nowhere.
        prompt: The boundaries that its prompt singles out; ``None``: not asked for yet.
        load_id: What it computes is worthless if this load fails; ``None``: it rests on none.
        tails: The tails that it keeps or rests on, but for the rolling one.
        rolling: The last tail of its answer; ``None``: none yet.
        unnamed: Tails that are to be stored as soon as the tokens behind them are known.
    """

    request: Request
    next_unit: int = 0
    passed: int = 0
    junction: int = 0
    prompt: PromptBoundaries | None = None
    load_id: int | None = None
    tails: list[bytes] = field(default_factory=list)
    rolling: bytes | None = None
    unnamed: list[Tail] = field(default_factory=list)


def rows_run(
    layout: TierLayout,
    keys: Sequence[bytes],
    places: Sequence[Any],
    first_unit: int,
    tables: Tables,
    skip_before: int = 0,
) -> Run:
    """Return the run of consecutive units.

    Args:
        skip_before: Rows of tokens before it are left alone.
    """
    start, end = first_unit * layout.unit, (first_unit + len(keys)) * layout.unit
    segments = [_segment(group, start, end, skip_before, tables) for group in layout.rows]
    return Run(False, tuple(keys), tuple(places), tuple(segments))


def tail_segments(
    layout: TierLayout, boundary: int, tables: Tables, skip_before: int = 0
) -> tuple[Segment, ...]:
    """Return where a boundary's tail is; of the first ones rows are missing in front."""
    return tuple(
        [
            _segment(
                group,
                boundary - group.tail_rows * group.tokens_per_row,
                boundary,
                skip_before,
                tables,
            )
            for group in layout.tails
        ]
    )


def cached_tail_segments(
    layout: TierLayout, boundary: int, cached: Mapping[int, Mapping[int, int]]
) -> tuple[Segment, ...]:
    """Return where a boundary's tail is in blocks that no request needs to hold.

    Args:
        cached: Group id -> ordinal -> block id.
    """
    segments = []
    for group in layout.tails:
        ratio, size, blocks = group.tokens_per_row, group.rows_per_block, cached[group.group_id]
        end_row = boundary // ratio
        first_row = end_row - group.tail_rows
        ordinals = range(max(first_row, 0) // size, -(-end_row // size))
        ids = tuple(blocks.get(ordinal, NULL_BLOCK_ID) for ordinal in ordinals)
        segments.append(Segment(group.group_id, first_row, end_row, 0, size, ids))
    return tuple(segments)


def _segment(group: GroupLayout, start: int, end: int, skip_before: int, tables: Tables) -> Segment:
    ratio, size = group.tokens_per_row, group.rows_per_block
    first_row, end_row = start // ratio, end // ratio
    ids = ids_between(tables[group.group_id], first_row, end_row, size)
    # Of a row that is computed in part nothing is left alone: rows end with units.
    return Segment(group.group_id, first_row, end_row, skip_before // ratio, size, ids)
