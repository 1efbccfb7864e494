# SPDX-License-Identifier: Apache-2.0
"""Groups whose blocks hold rows: attention, compressed or windowed, and compressor state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_ascend_evaluation.oracle.digests import GARBAGE
from vllm_ascend_evaluation.oracle.groups import Drafts, GroupRules, Kind
from vllm_ascend_evaluation.oracle.guard import NULL_BLOCK_ID, BlockGuard
from vllm_ascend_evaluation.oracle.reads import (
    Rows,
    chunked_rows_read,
    draft_rows_read,
    dspark_rows_read,
    sliding_rows_read,
    state_rows_read,
    written_rows,
)
from vllm_ascend_evaluation.oracle.request_state import RequestState, Span
from vllm_ascend_evaluation.oracle.row_access import RowAccess
from vllm_ascend_evaluation.oracle.shadow_memory import ShadowMemory


class RowGroup(RowAccess):
    """One KV cache group during a step: what its kernels read and write.

    The worker calls, for all requests of the step: `before_writes`, `write`, `after_writes`,
    `write_drafts`, `after_drafts`. This base class is full and compressed attention.

    Args:
        lookahead_tokens: positions behind the last real one that the drafter scribbles on.
        strict_draft: see RowAccess.
    """

    def __init__(
        self,
        group_id: int,
        rules: GroupRules,
        memory: ShadowMemory,
        guard: BlockGuard,
        *,
        lookahead_tokens: int = 0,
        strict_draft: bool = True,
    ) -> None:
        super().__init__(group_id, rules, memory, guard, strict_draft=strict_draft)
        self._lookahead_tokens = lookahead_tokens

    def spoil(self, state: RequestState, start: int, end: int) -> None:
        """Mark the rows of a request's tokens [start, end) as what nobody may read."""
        ratio = self.rules.ratio if self.rules.kind is Kind.FULL else 1
        size = self.rules.rows_per_block
        table = state.tables[self.group_id].block_ids
        for row in range(start // ratio, end // ratio):
            ordinal, place = divmod(row, size)
            if ordinal < len(table) and table[ordinal] != NULL_BLOCK_ID:
                self._memory.mark(table[ordinal], self.group_id, slice(place, place + 1), GARBAGE)

    def before_writes(self, spans: Sequence[Span]) -> None:
        """Reads that must be right before any request of the step writes."""

    def write(self, spans: Sequence[Span]) -> None:
        """Write the rows of every request."""
        ratio = self.rules.ratio
        for span in spans:
            start, end = written_rows(span.start, span.end, ratio=ratio)
            if start == end:
                continue
            valid_end = min(end, span.valid_end // ratio)
            stamps = span.state.digests.array[(start + 1) * ratio : valid_end * ratio + 1 : ratio]
            self._store(self._rows, span, Rows(start, end), stamps)

    def after_writes(self, spans: Sequence[Span]) -> None:
        """Reads that may rest on rows written in the same step."""
        ratio = self.rules.ratio
        for span in spans:
            num_rows = span.valid_end // ratio
            if num_rows:
                table = span.state.tables[self.group_id]
                self._verify_changed(self._rows, span, table.seen, num_rows, ratio)

    def write_drafts(self, spans: Sequence[Span]) -> None:
        """Write the draft model's rows. EAGLE's row p needs token p + 1, so it comes last."""
        if self._draft_rows is None:
            return
        behind = 1 + self.rules.draft_ahead
        for span in spans:
            stamps = span.state.digests.array[span.start + behind : span.valid_end + behind]
            self._store(self._draft_rows, span, Rows(span.start, span.end), stamps)
            self._scribble(span)

    def after_drafts(self, spans: Sequence[Span]) -> None:
        """Reads of the draft model's layers."""
        if self._draft_rows is None:
            return
        window = self.rules.window or None
        for span in spans:
            if self.rules.drafts is Drafts.OWN_TOKEN:
                rows = dspark_rows_read(span.valid_end, window=self.rules.window)
            else:
                rows = draft_rows_read(span.start, window=window)
            if rows.start == rows.end:
                continue
            if window is None:
                seen = span.state.tables[self.group_id].draft_seen
                self._verify_changed(self._draft_rows, span, seen, rows.end, 1)
            else:
                self._verify(self._draft_rows, span, rows, 1)

    def _scribble(self, span: Span) -> None:
        """Rows that later passes of the drafter leave behind the last real position.

        Only where the request has a block: the scheduler grants no lookahead to a first chunk.
        """
        assert self._draft_rows is not None
        table = span.state.tables[self.group_id]
        limit = len(table) * self.rules.rows_per_block
        end = min(span.valid_end + self._lookahead_tokens, limit)
        if end > span.end:
            nothing = span.state.digests.array[:0]
            self._store(self._draft_rows, span, Rows(span.end, end), nothing)


class SlidingGroup(RowGroup):
    """Sliding-window attention."""

    def after_writes(self, spans: Sequence[Span]) -> None:
        """Every window of the step's real tokens."""
        for span in spans:
            rows = sliding_rows_read(span.start, span.valid_end, window=self.rules.window)
            self._verify(self._rows, span, rows, 1)


class ChunkedGroup(RowGroup):
    """Chunked local attention."""

    def after_writes(self, spans: Sequence[Span]) -> None:
        """From the start of the first token's chunk."""
        for span in spans:
            rows = chunked_rows_read(span.start, span.valid_end, chunk=self.rules.window)
            self._verify(self._rows, span, rows, 1)


class StateGroup(RowGroup):
    """Compressor state: a kernel reads the rows of earlier tokens while others are written.

    Args:
        strict_state: read before any write of the step, as Ascend's kernels may. Otherwise
            after all of them, as vLLM's, which save all states first.
    """

    def __init__(
        self,
        group_id: int,
        rules: GroupRules,
        memory: ShadowMemory,
        guard: BlockGuard,
        *,
        strict_state: bool,
    ) -> None:
        super().__init__(group_id, rules, memory, guard)
        self._strict_state = strict_state

    def write(self, spans: Sequence[Span]) -> None:
        """Write the rows of every request; what falls on the null block is left out.

        Ascend's kernels skip such writes, and take what they need inside a step from the step
        itself: rows that a later step reads must have a block all the same.
        """
        for span in spans:
            rows = Rows(span.start, span.end)
            for part in self._parts_with_blocks(span, rows):
                valid_end = max(min(part.end, span.valid_end), part.start)
                stamps = span.state.digests.array[part.start + 1 : valid_end + 1]
                self._store(self._rows, span, part, stamps)

    def _parts_with_blocks(self, span: Span, rows: Rows) -> Iterator[Rows]:
        """Yield the runs of rows that have a block of their own."""
        size = self.rules.rows_per_block
        block_ids = span.state.tables[self.group_id].block_ids
        start = rows.start
        while start < rows.end:
            ordinal = start // size
            is_null = ordinal < len(block_ids) and block_ids[ordinal] == NULL_BLOCK_ID
            end = ordinal + 1
            while end * size < rows.end and (
                (end < len(block_ids) and block_ids[end] == NULL_BLOCK_ID) == is_null
            ):
                end += 1
            stop = min(end * size, rows.end)
            if not is_null:
                yield Rows(start, stop)
            start = stop

    def before_writes(self, spans: Sequence[Span]) -> None:
        """The open windows' earlier rows."""
        if self._strict_state:
            self._read(spans)

    def after_writes(self, spans: Sequence[Span]) -> None:
        """The same, where kernels may rely on rows of the same step."""
        if not self._strict_state:
            self._read(spans)

    def _read(self, spans: Sequence[Span]) -> None:
        rules = self.rules
        for span in spans:
            rows = state_rows_read(span.start, ratio=rules.ratio, overlapping=rules.overlapping)
            self._verify(self._rows, span, rows, 1)
