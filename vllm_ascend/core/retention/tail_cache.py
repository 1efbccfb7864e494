# SPDX-License-Identifier: Apache-2.0
"""Which tails a request leaves in the cache as it goes on, and for how long.

Entered are the tails of kept boundaries, of the boundary at which the request would be resumed if
it ended now (it rolls along), and with spare tails of every other boundary as well. With pinning,
the window that a request leaves by a whole chunk stays longest of all.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool, Rank
from vllm_ascend.core.reporting.cache_stats import BoundaryKind, CacheStats
from vllm_ascend.core.retention.boundaries import (
    align_down,
    fallback_boundary,
    finish_boundary,
    kept_boundaries,
    replay_boundary,
)
from vllm_ascend.core.retention.pinning import leaves_by_chunk
from vllm_ascend.core.retention.request_record import RequestRecord, Tail, TailBlock

# Of how many tails, beside those that were singled out, a request remembers that it keeps them: a
# prompt of a million tokens at the default interval has 32.
MOST_REMEMBERED = 64


class Entered(NamedTuple):
    """Blocks of a request that are in the index now, by ordinal."""

    group: Group
    ordinals: Sequence[int]


class TailCache:
    """Carries out what ``retention`` says, for the groups that forget."""

    def __init__(
        self,
        pool: AscendBlockPool,
        groups: Sequence[Group],
        *,
        alignment: int,
        interval: int | None,
        lookahead: int,
        keeps_fallback: bool,
        keeps_spares: bool,
        stats: CacheStats,
        pin_min_drop: int | None = None,
    ) -> None:
        """Prepare.

        Args:
            groups: Those whose tails are retained.
            alignment: Hits are multiples of this, in tokens.
            interval: See ``retention.kept_boundaries``.
            lookahead: Tokens behind a boundary that a hit must know, for draft layers; or 0.
            keeps_fallback: Keep a boundary shortly before the replay boundary as well.
            keeps_spares: Enter the tails of boundaries that nothing asks to keep.
            stats: Where kept boundaries are counted.
            pin_min_drop: See ``pinning.leaves_by_chunk``; ``None`` pins nothing.
        """
        self._pool = pool
        self._groups = groups
        self._alignment = alignment
        self._interval = interval
        self._lookahead = lookahead
        self._keeps_fallback = keeps_fallback
        self._keeps_spares = keeps_spares and interval is not None
        self._pin_min_drop = pin_min_drop
        self._windows = [(group.window, group.block_tokens) for group in groups]
        self._num_kept = stats.kept

    @property
    def keeps_spares(self) -> bool:
        """Whether boundaries that nothing asks to keep are entered as well."""
        return self._keeps_spares

    def passes_boundary(self, record: RequestRecord, end: int) -> bool:
        """Whether a request has a boundary to deal with on its way to ``end`` tokens."""
        return align_down(end, self._alignment) > record.passed

    def kept(self, record: RequestRecord, start: int, end: int) -> list[int]:
        """Return the boundaries in ``(start, end]`` whose tails the request keeps."""
        return kept_boundaries(
            start,
            end,
            alignment_tokens=self._alignment,
            interval_tokens=self._interval,
            singled_out=(*self._replay(record), record.junction),
        )

    def _replay(self, record: RequestRecord) -> set[int]:
        """Return the boundaries kept for a prompt that comes again; 0 is none."""
        prompt_tokens = 0 if record.request is None else record.request.num_prompt_tokens
        replay = replay_boundary(prompt_tokens, self._alignment, max(self._lookahead, 1))
        if not self._keeps_fallback:
            return {replay}
        return {replay, fallback_boundary(replay, self._alignment, self._lookahead)}

    def rolling(self, end: int) -> range:
        """Return the boundaries at which a request that ends around ``end`` may be resumed."""
        first = max(finish_boundary(end, self._alignment, self._lookahead), self._alignment)
        return range(first, end + 1, self._alignment)

    def spares(self, start: int, end: int, kept: Iterable[int]) -> list[int]:
        """Return the boundaries in ``(start, end]`` that nothing asks to keep."""
        first = align_down(start, self._alignment) + self._alignment
        return sorted(set(range(first, end + 1, self._alignment)).difference(kept))

    def advance(self, record: RequestRecord, end: int) -> list[Entered]:
        """Enter the tails of the boundaries that a request has passed, up to ``end`` tokens.

        Returns:
            What is cached now and was perhaps not before.
        """
        start, record.passed = record.passed, end
        self._pin_window_left(record, start, end)
        kept = self.kept(record, start, end)
        rolling = [b for b in self.rolling(end) if b > start and b not in kept]
        entered: list[Entered] = []
        if self._keeps_spares:
            spares = self._held(record, self.spares(start, end, [*kept, *rolling]))
            entered += self._enter(record, spares, Rank.SPARE)
        kept, rolling = self._held(record, kept), self._held(record, rolling)
        entered += self._enter(record, rolling, Rank.ROLLING)
        entered += self._enter(record, kept, record.rank)
        if kept:
            self._count(record, kept)
            self._remember(record, kept)
        rolled = [self._tail(record, boundary) for boundary in rolling]
        self._roll(record, rolled, finish_boundary(end, self._alignment, self._lookahead))
        return entered

    def _remember(self, record: RequestRecord, kept: Sequence[int]) -> None:
        """Remember the tails of boundaries just entered, to be refreshed when the request ends.

        Without an interval every boundary is kept, thousands in a long prompt. Then those at every
        second one are remembered, at every fourth, and so on; the others stay cached as they are.
        """
        record.kept += [self._tail(record, boundary) for boundary in kept]
        if len(record.kept) <= 2 * MOST_REMEMBERED:
            return
        always = {*self._replay(record), record.junction, record.hit, kept[-1]}
        spacing, remembered = self._alignment, record.kept
        while len(remembered) > MOST_REMEMBERED + len(always):
            spacing *= 2
            remembered = [t for t in remembered if t.boundary in always or not t.boundary % spacing]
        record.kept = remembered

    def _pin_window_left(self, record: RequestRecord, start: int, end: int) -> None:
        """Pin the deepest tail that a request has, if it now leaves it by a whole chunk.

        One tail serves a hit in all groups or in none, so they are pinned together.
        """
        if self._pin_min_drop is None or not (record.kept or record.rolling):
            return
        if record.request is not None:
            # Not every step passes a boundary: those of decoding must not add up to a chunk.
            start = max(start, record.request.num_computed_tokens)
        if leaves_by_chunk(start, end, self._windows, min_drop_blocks=self._pin_min_drop):
            deepest = max((*record.kept[-1:], *record.rolling[-1:]), key=lambda t: t.boundary)
            self._set_rank(deepest, Rank.PINNED)

    def finish(self, record: RequestRecord) -> list[TailBlock]:
        """Keep the finish boundary's tail; return the blocks of all tails the request keeps.

        Called when the request ends or is preempted, before its blocks are freed.
        """
        boundary = finish_boundary(record.cached, self._alignment, self._lookahead)
        for tail in record.rolling:
            if tail.boundary == boundary:
                self._set_rank(tail, record.rank)
                record.kept.append(tail)
                self._num_kept[BoundaryKind.FINISH] += 1
            else:
                self._let_go(tail, needed=set())
        record.rolling.clear()
        blocks = {b.block.block_id: b for tail in record.kept for b in tail.blocks if b.is_intact}
        return list(blocks.values())

    def lend(self, record: RequestRecord, boundary: int, blocks: Sequence[TailBlock]) -> None:
        """A hit rests on a tail: whatever it was, it is kept from now on."""
        tail = Tail(boundary, tuple(blocks))
        self._set_rank(tail, Rank.KEPT)
        record.kept.append(tail)

    def protect(self, record: RequestRecord) -> None:
        """Let what a request keeps from now on, and what it was lent, outlive others."""
        record.rank = Rank.PROTECTED
        for tail in record.kept:
            self._set_rank(tail, record.rank)

    def _count(self, record: RequestRecord, kept: Sequence[int]) -> None:
        """Count boundaries by the first reason for which each is kept."""
        replay = self._replay(record).intersection(kept)
        junction = record.junction in kept and record.junction not in replay
        self._num_kept[BoundaryKind.REPLAY] += len(replay)
        self._num_kept[BoundaryKind.JUNCTION] += junction
        self._num_kept[BoundaryKind.INTERVAL] += len(kept) - len(replay) - junction

    def _roll(self, record: RequestRecord, tails: list[Tail], finish: int) -> None:
        """Let go of tails that the request has left behind: it would be resumed further on."""
        record.rolling += tails
        left = [tail for tail in record.rolling if tail.boundary < finish]
        if not left:
            return
        record.rolling = [tail for tail in record.rolling if tail.boundary >= finish]
        needed = {b.block.block_id for tail in record.rolling for b in tail.blocks}
        for tail in left:
            self._let_go(tail, needed)

    def _let_go(self, tail: Tail, needed: set[int]) -> None:
        """Make a rolling tail spare, or scratch; what somebody else keeps or needs stays."""
        for entry in tail.blocks:
            block = entry.block
            is_ours = entry.is_intact and self._pool.rank(block) is Rank.ROLLING
            if not is_ours or block.block_id in needed:
                continue
            if self._keeps_spares:
                self._pool.set_rank(block, Rank.SPARE)
            else:
                self._pool.give_up(block)

    def _set_rank(self, tail: Tail, rank: Rank) -> None:
        for entry in tail.blocks:
            if entry.is_intact and self._pool.rank(entry.block) > rank:
                self._pool.set_rank(entry.block, rank)

    def _held(self, record: RequestRecord, boundaries: Iterable[int]) -> list[int]:
        """Return the ascending boundaries whose tails the request holds in all groups."""
        null_block = self._pool.null_block
        held = list(boundaries)
        for group, blocks in self._tables(record):
            tokens, known = group.block_tokens, len(blocks) * group.block_tokens
            if group.tail_length == 1:  # by far the most, and thousands in a step
                held = [b for b in held if b <= known and blocks[b // tokens - 1] is not null_block]
            else:
                held = [b for b in held if b <= known]
                held = _without_holes(group, blocks, held, null_block)
        return held

    def _enter(self, record: RequestRecord, boundaries: Sequence[int], rank: Rank) -> list[Entered]:
        """Enter the tails of boundaries, all of which are held."""
        if not boundaries:
            return []
        assert record.request is not None, "its blocks are entered, so it has named itself"
        entered: list[Entered] = []
        for group, blocks in self._tables(record):
            ordinals = _ordinals(group, boundaries)
            if ordinals:
                self._pool.enter(
                    record.request, blocks, ordinals, group.block_tokens, group.id, rank
                )
                entered.append(Entered(group, ordinals))
        return entered

    def _tail(self, record: RequestRecord, boundary: int) -> Tail:
        """Return the tail that was entered for a boundary."""
        entries: list[TailBlock] = []
        for group, blocks in self._tables(record):
            for ordinal in group.tail(boundary):
                key = blocks[ordinal].block_hash
                assert key is not None, "it was entered just now, or before"
                entries.append(TailBlock(blocks[ordinal], key, ordinal * group.block_tokens))
        return Tail(boundary, tuple(entries))

    def _tables(self, record: RequestRecord) -> list[tuple[Group, list[KVCacheBlock]]]:
        request_id = "" if record.request is None else record.request.request_id
        return [(group, group.manager.req_to_blocks[request_id]) for group in self._groups]


def _ordinals(group: Group, boundaries: Sequence[int]) -> list[int]:
    """Return the blocks of the tails of ascending boundaries; one may belong to many of them."""
    if group.tail_length == 1:
        return [boundary // group.block_tokens - 1 for boundary in boundaries]
    ordinals: list[int] = []
    for span in _spans(group, boundaries):
        ordinals.extend(span)
    return ordinals


def _spans(group: Group, boundaries: Sequence[int]) -> Sequence[range]:
    """Return the tails of ascending boundaries, those that overlap or touch as one."""
    if not boundaries:
        return ()
    tails = (group.tail_length or 0) * group.block_tokens
    if all(b - a <= tails for a, b in itertools.pairwise(boundaries)):
        # A chunk has hundreds of boundaries, and all of them are spare.
        first, last = group.tail(boundaries[0]), group.tail(boundaries[-1])
        return (range(first.start, last.stop),)
    spans: list[range] = []
    for tail in map(group.tail, boundaries):
        if spans and tail.start <= spans[-1].stop:
            spans[-1] = range(spans[-1].start, tail.stop)
        else:
            spans.append(tail)
    return spans


def _without_holes(
    group: Group, blocks: Sequence[KVCacheBlock], boundaries: list[int], null_block: KVCacheBlock
) -> list[int]:
    """Return the ascending boundaries that have no null block in their tails."""
    holes = [i for i in _ordinals(group, boundaries) if blocks[i] is null_block]
    if not holes:
        return boundaries

    def is_whole(tail: range) -> bool:
        following = bisect_left(holes, tail.start)
        return following == len(holes) or holes[following] >= tail.stop

    return [boundary for boundary in boundaries if is_whole(group.tail(boundary))]
