# SPDX-License-Identifier: Apache-2.0
"""Sparse compressor state: blocks only for rows that somebody will read.

Inside a prefill chunk the kernels take a compressor's state from the chunk itself, and they skip
writes to the null block. So of a chunk's state only its end is read again, by the next step, and
the tails of boundaries that are cached.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager

from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.policy.ranks import SPARE_SPACING
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.request_record import RequestRecord
from vllm_ascend.core.retention.tail_cache import TailCache

RowsRead = Callable[[str, int, int, int], Sequence[int]]
"""(request id, first new ordinal, tokens of the main model, tokens with slots) -> the ordinals
of new blocks that will be read."""
NewBlocks = tuple[list[KVCacheBlock], ...]
"""What a request was given for a step, by group."""


class SparseStateManager(SlidingWindowManager):
    """A compressor-state group whose table holds null blocks where nobody will read.

    Attributes:
        rows_read: Says which new blocks will be read; set by :class:`SparseState`, which knows
            the boundaries, before anything is allocated.
    """

    rows_read: RowsRead

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        *token_counts: int,
    ) -> int:
        """Return the blocks that ``num_tokens`` tokens still need; see vLLM's base class.

        Args:
            *token_counts: The last one is that of the main model; some releases tell more.
        """
        num_tokens_main_model = token_counts[-1]
        held = len(self.req_to_blocks.get(request_id, ()))
        num_loaded = 0
        if request_id not in self.num_cached_block:
            skipped = self.get_num_skipped_tokens(total_computed_tokens) // self.block_size
            held = max(held + len(new_computed_blocks), skipped)
            # External tokens have blocks throughout their window, whoever reads them.
            num_loaded = max(cdiv(total_computed_tokens, self.block_size) - held, 0)
        needed = num_loaded + num_free_in_tail(new_computed_blocks)
        first = held + num_loaded
        if cdiv(num_tokens, self.block_size) <= first:
            return needed
        return needed + len(self.rows_read(request_id, first, num_tokens_main_model, num_tokens))

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[KVCacheBlock]:
        """Extend the table to ``num_tokens`` tokens, with null blocks where nobody will read."""
        blocks = self.req_to_blocks[request_id]
        held = len(blocks)
        num_new = cdiv(num_tokens, self.block_size) - held
        if num_new <= 0:
            return []
        read = self.rows_read(request_id, held, num_tokens_main_model, num_tokens)
        new_blocks = [self._null_block] * num_new
        real_blocks = self.block_pool.get_new_blocks(len(read))
        self.note_new(real_blocks)
        for ordinal, block in zip(read, real_blocks, strict=True):
            new_blocks[ordinal - held] = block
        blocks.extend(new_blocks)
        return new_blocks

    def note_new(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Let workers zero blocks, in releases that do, before this group's rows are written."""
        if getattr(self, "records_new_block_ids", False):
            self.new_block_ids.extend(block.block_id for block in blocks)


# A step of a long prompt has many of both: as lists of what is there already, and no object each,
# they do not wake the garbage collector.


@dataclass
class _Holes:
    """Null blocks where spare tails need real ones: boundary, group and ordinal of each."""

    boundaries: list[int] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)

    def add(self, boundary: int, group: Group, ordinal: int) -> None:
        self.boundaries.append(boundary)
        self.groups.append(group)
        self.ordinals.append(ordinal)


@dataclass
class _Spares:
    """Blocks that are held for spare tails: whose each is, and where."""

    request_ids: list[str] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    blocks: list[KVCacheBlock] = field(default_factory=list)

    def add(self, request_id: str, group: Group, ordinal: int, block: KVCacheBlock) -> None:
        self.request_ids.append(request_id)
        self.groups.append(group)
        self.ordinals.append(ordinal)
        self.blocks.append(block)

    def rows(self) -> Iterator[tuple[str, Group, int, KVCacheBlock]]:
        return zip(self.request_ids, self.groups, self.ordinals, self.blocks, strict=True)


class SparseState:
    """Decides for all sparse groups which of their blocks are real."""

    def __init__(
        self,
        pool: AscendBlockPool,
        groups: Sequence[Group],
        tails: TailCache,
        records: Mapping[str, RequestRecord],
        plan: CachePlan,
    ) -> None:
        """Take charge of the groups whose manager is a :class:`SparseStateManager`."""
        self._pool, self._tails, self._records = pool, tails, records
        self._sparse = [g for g in groups if isinstance(g.manager, SparseStateManager)]
        self._num_unconfirmed = plan.num_unconfirmed_tokens
        self._spares_every = plan.connector_spares_every
        self._spares = _Spares()
        # What the rest of a step may still allocate: a step's tokens in every group, and what
        # each running request needs at its end.
        self._blocks_per_step = sum(
            cdiv(plan.max_num_batched_tokens, group.block_tokens)
            for group in groups
            if group not in self._sparse
        )
        self._blocks_per_request = 2 * len(groups)
        for group in self._sparse:
            group.manager.rows_read = self._rows_read(group)

    @property
    def num_spares(self) -> int:
        """Blocks held for spare tails in this step."""
        return len(self._spares.blocks)

    def is_sparse(self, group: Group) -> bool:
        """Whether the group's tables hold null blocks where nobody reads."""
        return group in self._sparse

    def _rows_read(self, group: Group) -> RowsRead:
        def rows_read(
            request_id: str, first_ordinal: int, num_main_tokens: int, num_tokens: int
        ) -> Sequence[int]:
            end_ordinal = cdiv(num_tokens, group.block_tokens)
            record = self._records.get(request_id)
            if record is None or record.request is None:
                return range(first_ordinal, end_ordinal)
            resumed_at = max(num_main_tokens - self._num_unconfirmed, 0)
            # To the end: the next token's row is written beside those of this step.
            first_open = group.tail_start(resumed_at) // group.block_tokens
            open_end = range(max(first_open, first_ordinal), end_ordinal)
            # Drafts may be among the tokens; boundaries are passed by real ones.
            end = min(num_main_tokens, record.request.num_tokens)
            if not self._tails.passes_boundary(record, end):  # as in most steps of decoding
                return open_end
            own = {*self._tails.prompt(record).singled_out, *self._tails.rolling(end)}
            own.update(multiples(record.passed, end, self._spares_every))
            tails = group.tails(self._tails.rules.kept(record.passed, end, own))
            return sorted({*open_end, *(i for i in tails if i >= first_ordinal)})

        return rows_read

    def add_spares(self, request_id: str, new_blocks: NewBlocks, num_main_tokens: int) -> None:
        """Give spare tails the state that they need, out of memory that nobody will miss.

        The blocks are held for this step only; so much stays untouched that the rest of the step
        need not take anything kept instead. ``new_blocks`` is changed in place.
        """
        if not (self._sparse and self._tails.keeps_spares):
            return
        record = self._records[request_id]
        if record.request is None:
            return
        holes = self._holes(record, new_blocks, num_main_tokens)
        reserve = self._blocks_per_step + self._blocks_per_request * len(self._records)
        available = self._pool.free_block_queue.num_expendable_blocks - reserve
        if not holes.ordinals or available <= 0:
            return
        lacking = Counter(holes.boundaries)
        chosen = set(spread(sorted(lacking), available // max(lacking.values())))
        # Boundary by boundary, and of each the groups in their order.
        order = sorted(range(len(holes.ordinals)), key=holes.boundaries.__getitem__)
        filled = [hole for hole in order if holes.boundaries[hole] in chosen]
        for hole, block in zip(filled, self._pool.get_new_blocks(len(filled)), strict=True):
            group, ordinal = holes.groups[hole], holes.ordinals[hole]
            table, given = group.manager.req_to_blocks[request_id], new_blocks[group.id]
            table[ordinal] = given[ordinal - len(table) + len(given)] = block
            group.manager.note_new([block])
            self._spares.add(request_id, group, ordinal, block)

    def _holes(self, record: RequestRecord, new_blocks: NewBlocks, num_main_tokens: int) -> _Holes:
        """Return the blocks that spare tails lack, all among the new ones."""
        assert record.request is not None
        end = min(num_main_tokens, record.request.num_tokens)
        holes = _Holes()
        if not self._tails.passes_boundary(record, end):
            return holes
        ranked = self._tails.ranked(record, record.passed, end)
        boundaries = sorted(itertools.chain.from_iterable(ranked[rank] for rank in SPARE_SPACING))
        for group in self._sparse:
            if not group.tail_length:
                continue
            table = group.manager.req_to_blocks[record.request.request_id]
            first_new = len(table) - len(new_blocks[group.id])
            for boundary in boundaries:
                for ordinal in group.tail(boundary):
                    if ordinal >= first_new and table[ordinal].is_null:
                        holes.add(boundary, group, ordinal)
        return holes

    def spares(self) -> Iterator[tuple[str, Group, int]]:
        """Yield the blocks held for spare tails, for this step: request, group and ordinal."""
        for request_id, group, ordinal, block in self._spares.rows():
            table = group.manager.req_to_blocks.get(request_id)
            # A request that was preempted, ended or moved on has freed it itself.
            if table is not None and ordinal < len(table) and table[ordinal] is block:
                yield request_id, group, ordinal

    def release_spares(self) -> None:
        """Free the spare tails' state: the step that wrote it has been dispatched."""
        released: list[KVCacheBlock] = []
        for request_id, group, ordinal in self.spares():
            table = group.manager.req_to_blocks[request_id]
            released.append(table[ordinal])
            table[ordinal] = self._pool.null_block
        self._spares = _Spares()
        if released:
            self._pool.free_blocks(released)


def num_free_in_tail(blocks: Sequence[KVCacheBlock]) -> int:
    """Return how many blocks of a hit are free: of its tail, which comes last.

    In front of it a hit of a million tokens has a hundred thousand null blocks.
    """
    num_free = 0
    for block in reversed(blocks):
        if block.is_null:
            break
        num_free += block.ref_cnt == 0
    return num_free


def multiples(start: int, end: int, every: int) -> range:
    """Return the multiples of a number in ``(start, end]``; none of 0."""
    return range(start // every * every + every, end + 1, every) if every else range(0)


def spread(items: Sequence[int], count: int) -> Sequence[int]:
    """Return at most ``count`` of the items, evenly spread, the last one among them."""
    if count <= 0:
        return []
    stride = cdiv(len(items), count)
    return items[::-1][::stride][::-1] if stride else items
