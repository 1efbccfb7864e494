# SPDX-License-Identifier: Apache-2.0
"""Enters the tails that a running request leaves in the cache, and ranks them.

Three kinds of tails are entered: of kept boundaries; of the last boundary so far, at which the next
turn would go on if the request ended now (this one rolls along with the request); and, with spare
tails, of every other boundary. With pinning, the window that a request leaves by a whole chunk
stays longest of all.

A tail takes memory that rows of a prefix could have. Say a boundary lies 128 tokens behind a kept
one, and its tail takes the memory of 1,000 tokens' rows. Then it makes hits 128 tokens longer at
the price of 1,000: it is *marginal*, and is given up before the rows of others. So are the rows
that only marginal tails need. If a hit uses a marginal tail, the tail and its rows are kept. This
applies where a fallback boundary and spare tails are kept.

When a request goes on behind a tail and keeps a deeper one, the first tail is *superseded*: the
next turn will hit the deeper one. A tail where several requests went on is not superseded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.policy.boundaries import (
    BoundaryRules,
    PromptBoundaries,
    align_down,
    is_worth_a_tail,
)
from vllm_ascend.core.policy.pinning import leaves_by_chunk
from vllm_ascend.core.policy.ranks import Rank, ranked_boundaries, spare_rank, spare_unit
from vllm_ascend.core.policy.tail_blocks import without_holes
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.reporting.cache_stats import BoundaryKind, CacheStats
from vllm_ascend.core.retention.request_record import (
    EnteredBlocks,
    RequestRecord,
    Tail,
    TailBlock,
    WaitingTails,
)

# Of how many tails, beside those that were singled out, a request remembers that it keeps them: a
# prompt of a million tokens at the default interval has 32.
MOST_REMEMBERED = 64
_Table = tuple[Group, list[KVCacheBlock]]
"""A group, and the blocks that a request has there."""


class TailCache:
    """Enters the tails of boundaries by the rank that each has, and lets go of them again."""

    def __init__(
        self,
        pool: AscendBlockPool,
        groups: Sequence[Group],
        plan: CachePlan,
        *,
        lookahead: int,
        least_gain_tokens: int,
        stats: CacheStats,
    ) -> None:
        """Retain tails.

        Args:
            lookahead: Draft layers need so many tokens behind a boundary, others 0.
            least_gain_tokens: So many tokens' rows take the memory of a tail.
        """
        self._pool = pool
        self._groups = groups
        self._plan, self._alignment = plan, plan.alignment
        self._windows = [(group.window, group.block_tokens) for group in groups]
        self._num_kept = stats.kept
        self.keeps_spares = plan.keeps_spares
        self.rules = BoundaryRules(
            plan.alignment,
            lookahead,
            least_gain_tokens if plan.keeps_spares and plan.keeps_fallback else 0,
            plan.tails_interval,
            plan.keeps_fallback,
        )
        far = plan.alignment << 32
        tails = (len(group.tail(far)) * group.block_tokens for group in groups)
        self.spare_unit = spare_unit(plan.alignment, max(tails, default=0))
        # Where tails have blocks in common, one is no memory of its own.
        self._supersedes = bool(self.rules.least_gain_tokens) and self.spare_unit == plan.alignment

    def passes_boundary(self, record: RequestRecord, end: int) -> bool:
        """Whether a request has a boundary to deal with on its way to ``end`` tokens."""
        return align_down(end, self._alignment) > record.passed

    def prompt(self, record: RequestRecord) -> PromptBoundaries:
        """Return what a request's prompt singles out, which may have grown since."""
        num_tokens = 0 if record.request is None else record.request.num_prompt_tokens
        known = record.prompt
        if known is None or known[:2] != (num_tokens, record.junction):
            known = record.prompt = self.rules.of_prompt(num_tokens, record.junction)
        return known

    def rolling(self, end: int) -> range:
        """Return the boundaries at which a request that ends around ``end`` may be resumed."""
        return range(max(self.rules.finish(end), self._alignment), end + 1, self._alignment)

    def ranked(self, record: RequestRecord, start: int, end: int) -> dict[Rank, list[int]]:
        """Return the boundaries in ``(start, end]`` that have tails, by rank, lowest first."""
        prompt = self.prompt(record)
        return ranked_boundaries(
            start,
            end,
            alignment=self._alignment,
            kept=self.rules.kept(start, end, prompt.kept),
            rolling=self.rolling(end),
            marginal=prompt.marginal,
            keeps_spares=self.keeps_spares,
            spare_unit=self.spare_unit,
            rank=record.rank,
        )

    def advance(self, record: RequestRecord, end: int) -> list[EnteredBlocks]:
        """Enter the tails of the boundaries that a request has passed, up to ``end`` tokens.

        Compressor state waits on the record until the next step starts. Returns what is cached now
        and was perhaps not before.
        """
        start, record.passed = record.passed, end
        request, prompt = record.request, self.prompt(record)
        assert request is not None, "its blocks are entered, so it has named itself"
        tables = self._tables(request)
        self._pin_window_left(record, start, end)
        entered: list[EnteredBlocks] = []
        held: dict[Rank, list[int]] = {}
        for rank, boundaries in self.ranked(record, start, end).items():
            held[rank] = self._held(tables, boundaries, record.loaded, record.stale_tokens)
            found, waiting = self._enter(request, tables, held[rank], rank)
            entered += found
            record.waiting += waiting
        kept = [self._tail(request, tables, boundary) for boundary in held[record.rank]]
        self._count(prompt, held[record.rank])
        self._remember(record, kept)
        for tail in kept:
            if tail.boundary == prompt.junction:  # the prompt that it leaves here goes on otherwise
                self._note_use(tail, is_shared=True)
        record.rolling += [self._tail(request, tables, b) for b in held[Rank.ROLLING]]
        self._roll(record, self.rules.finish(end))
        return entered

    def _held(
        self,
        tables: list[_Table],
        boundaries: list[int],
        loaded: tuple[int, int],
        stale: Sequence[int],
    ) -> list[int]:
        """Return the ascending boundaries whose tails a request's tables hold in all groups.

        Args:
            loaded: Of the boundaries in ``[start, end)`` none was loaded.
            stale: Tokens whose draft rows nobody else may read.
        """
        null_block, (start, end) = self._pool.null_block, loaded
        held = [b for b in boundaries if not start < b < end] if end else boundaries
        for group, blocks in tables if boundaries else ():
            tokens, known = group.block_tokens, len(blocks) * group.block_tokens
            if group.is_eagle and stale:
                held = [b for b in held if not any(group.tail_start(b) <= t < b for t in stale)]
            if group.tail_length == 1:  # by far the most, and thousands in a step
                held = [b for b in held if b <= known and blocks[b // tokens - 1] is not null_block]
                continue
            held = [b for b in held if b <= known]
            holes = [i for i in group.tails(held) if blocks[i] is null_block]
            if holes:
                held = without_holes(held, holes, group.tail)
        return held

    def _enter(
        self, request: Request, tables: list[_Table], boundaries: Sequence[int], rank: Rank
    ) -> tuple[list[EnteredBlocks], list[WaitingTails]]:
        """Enter the tails of boundaries, all of which are held; return what is, and what waits."""
        entered: list[EnteredBlocks] = []
        waiting: list[WaitingTails] = []
        pool = self._pool
        for group, blocks in tables if boundaries else ():
            ordinals = group.tails(boundaries)
            if not ordinals:
                continue
            where = (group.block_tokens, group.id)
            if group.is_read_first:
                pool.announce(request, blocks, ordinals, *where)
                waiting.append(WaitingTails(group, ordinals, rank))
                continue
            new = pool.enter(request, blocks, ordinals, *where, rank)
            pool.announce(request, blocks, new, *where)
            entered.append(EnteredBlocks(group, ordinals))
        return entered, waiting

    def _count(self, prompt: PromptBoundaries, kept: Sequence[int]) -> None:
        """Count the boundaries just entered, by what each is kept for."""
        replay = prompt.ends.intersection(kept)
        junction = prompt.junction in kept and prompt.junction not in replay
        self._num_kept[BoundaryKind.REPLAY] += len(replay)
        self._num_kept[BoundaryKind.JUNCTION] += junction
        self._num_kept[BoundaryKind.INTERVAL] += len(kept) - len(replay) - junction

    def _remember(self, record: RequestRecord, kept: Sequence[Tail]) -> None:
        """Remember tails just entered, to be refreshed when the request ends.

        Without an interval every boundary is kept, thousands in a long prompt. Then those at every
        second one are remembered, at every fourth, and so on; the others stay cached as they are.
        """
        record.kept += kept
        if not kept or len(record.kept) <= 2 * MOST_REMEMBERED:
            return
        always = {*self.prompt(record).singled_out, record.num_hit_tokens, kept[-1].boundary}
        spacing, remembered = self._alignment, record.kept
        while len(remembered) > MOST_REMEMBERED + len(always):
            spacing *= 2
            remembered = [t for t in remembered if t.boundary in always or not t.boundary % spacing]
        record.kept = remembered

    def _pin_window_left(self, record: RequestRecord, start: int, end: int) -> None:
        """Pin the deepest tail that a request has, if it now leaves it by a whole chunk.

        One tail serves a hit in all groups or in none, so they are pinned together.
        """
        config = self._plan.config
        if not config.pin_swa_tokens or not (record.kept or record.rolling):
            return
        if record.request is not None:
            # Not every step passes a boundary: those of decoding must not add up to a chunk.
            start = max(start, record.request.num_computed_tokens)
        if leaves_by_chunk(start, end, self._windows, min_drop_blocks=config.pin_min_drop_size):
            deepest = max((*record.kept[-1:], *record.rolling[-1:]), key=lambda t: t.boundary)
            self._raise(deepest, Rank.PINNED)

    def _roll(self, record: RequestRecord, finish: int) -> None:
        """Let go of tails that the request has left behind: it would be resumed further on."""
        left = [tail for tail in record.rolling if tail.boundary < finish]
        if not left:
            return
        record.rolling = [tail for tail in record.rolling if tail.boundary >= finish]
        needed = {b.block.block_id for tail in record.rolling for b in tail.blocks}
        marginal = self.prompt(record).marginal
        for tail in left:
            spare = spare_rank(tail.boundary, self.spare_unit)
            rank = Rank.MARGINAL if tail.boundary in marginal else spare
            self._let_go(tail, rank, needed)

    def _let_go(self, tail: Tail, rank: Rank, needed: Iterable[int] = ()) -> None:
        """Lower the rank of a rolling tail; what somebody else keeps or needs stays.

        Without spare tails it is scratch.
        """
        for entry in tail.blocks:
            block = entry.block
            is_ours = entry.is_intact and self._pool.rank(block) is Rank.ROLLING
            if not is_ours or block.block_id in needed:
                continue
            if self.keeps_spares:
                self._pool.set_rank(block, rank)
            else:
                self._pool.give_up(block)

    def finish(self, record: RequestRecord) -> list[TailBlock]:
        """Keep the finish boundary's tail, if it is worth it; return the blocks of all kept tails.

        Called when the request ends or is preempted, before its blocks are freed; the record is
        told how far they need rows.
        """
        boundary = self.rules.finish(record.cached)
        kept = [tail.boundary for tail in record.kept if tail.is_intact]
        is_worth_it = is_worth_a_tail(boundary, kept, self.rules.least_gain_tokens)
        for tail in record.rolling:
            if tail.boundary != boundary:
                self._let_go(tail, spare_rank(tail.boundary, self.spare_unit))
            elif is_worth_it:
                self._raise(tail, record.rank)
                record.kept.append(tail)
                if tail.is_intact:
                    kept.append(boundary)
                self._num_kept[BoundaryKind.FINISH] += 1
            else:
                self._let_go(tail, Rank.MARGINAL)
        record.rolling.clear()
        if self.rules.least_gain_tokens:
            record.end_of_kept = max(kept, default=0)
        if self._supersedes:
            self._let_go_superseded(record)
        blocks = {b.block.block_id: b for tail in record.kept for b in tail.blocks if b.is_intact}
        return list(blocks.values())

    def _let_go_superseded(self, record: RequestRecord) -> None:
        """Let go of the tail that a request's hit rests on, if it keeps a deeper one.

        Prompts that grow from turn to turn leave many. One where others went on as well stays.
        """
        pool, hit = self._pool, record.num_hit_tokens
        if record.end_of_kept <= (hit or 0):
            return
        lent = (tail for tail in record.kept if tail.boundary == hit and tail.is_intact)
        for blocks in ([entry.block for entry in tail.blocks] for tail in lent):
            if not any(map(pool.is_shared, blocks)):
                for block in blocks:
                    if pool.rank(block) is not Rank.PINNED:
                        pool.set_rank(block, Rank.MARGINAL)

    def tail_of_hit(self, blocks: Sequence[Sequence[KVCacheBlock]], hit: int) -> Tail | None:
        """Return what a hit of ``hit`` tokens rests on in the groups that forget.

        ``None``: it rests on nothing, as a connector brings the tail.
        """
        if any(len(group.tail(hit)) and not blocks[group.id] for group in self._groups):
            return None
        entries: list[TailBlock] = []
        for group in self._groups:
            for ordinal in group.tail(hit):
                block = blocks[group.id][ordinal]
                assert block.block_hash is not None, "it was found in the index"
                start_token = ordinal * group.block_tokens
                entries.append(TailBlock(block, block.block_hash, start_token))
        return Tail(hit, tuple(entries))

    def keep_hit(self, record: RequestRecord, tail: Tail) -> None:
        """Keep the tail that a request's hit rests on, whatever it was so far."""
        self._raise(tail, record.rank)
        if not record.is_resumed:  # else it was noted before, or the tail is the request's own
            self._note_use(tail)
        record.kept.append(tail)

    def _note_use(self, tail: Tail, *, is_shared: bool = False) -> None:
        """Note that a request goes on behind a tail, where it may be superseded."""
        if self._supersedes:
            for entry in tail.blocks:
                self._pool.note_use(entry.block, is_shared=is_shared)

    def protect(self, record: RequestRecord) -> None:
        """Let what a request keeps from now on, and what its hit rests on, outlive others."""
        record.rank = Rank.PROTECTED
        for tail in record.kept:
            self._raise(tail, record.rank)

    def _raise(self, tail: Tail, rank: Rank) -> None:
        for entry in tail.blocks:
            if entry.is_intact and self._pool.rank(entry.block) < rank:
                self._pool.set_rank(entry.block, rank)

    def _tail(self, request: Request, tables: list[_Table], boundary: int) -> Tail:
        """Return the tail that was entered for a boundary, or waits to be."""
        entries: list[TailBlock] = []
        for group, blocks in tables:
            tokens = group.block_tokens
            for ordinal in group.tail(boundary):
                block = blocks[ordinal]
                key = block.block_hash
                if key is None:
                    key = self._pool.key_of(request, ordinal, tokens, group.id)
                entries.append(TailBlock(block, key, ordinal * tokens))
        return Tail(boundary, tuple(entries))

    def _tables(self, request: Request) -> list[_Table]:
        name = request.request_id
        return [(group, group.manager.req_to_blocks[name]) for group in self._groups]
