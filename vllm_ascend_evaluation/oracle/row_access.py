# SPDX-License-Identifier: Apache-2.0
"""Writing and comparing rows of one group through a request's block table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vllm_ascend_evaluation.oracle.digests import GARBAGE, LOST, STALE, UNWRITTEN, Stamps
from vllm_ascend_evaluation.oracle.errors import ContentViolation
from vllm_ascend_evaluation.oracle.groups import GroupRules
from vllm_ascend_evaluation.oracle.guard import NULL_BLOCK_ID, BlockGuard
from vllm_ascend_evaluation.oracle.reads import Rows
from vllm_ascend_evaluation.oracle.request_state import BlockTable, Span
from vllm_ascend_evaluation.oracle.shadow_memory import NO_GROUP, ShadowMemory


class RowAccess:
    """The rows of one KV cache group, addressed by request and row number.

    Args:
        strict_draft: whether a draft row must match even where its block's key does not say
            so: the last row of a block depends on the token behind the block.
    """

    def __init__(
        self,
        group_id: int,
        rules: GroupRules,
        memory: ShadowMemory,
        guard: BlockGuard,
        *,
        strict_draft: bool,
    ) -> None:
        self.group_id = group_id
        self.rules = rules
        self._memory = memory
        self._guard = guard
        self._rows = memory.rows[group_id]
        self._draft_rows = memory.draft_rows.get(group_id)
        self._strict_draft = strict_draft

    def _store(self, plane: Stamps, span: Span, rows: Rows, stamps: Stamps) -> None:
        """Write rows [start, end): the given stamps first, garbage for what is left.

        Raises:
            ContentViolation: no block, or one that this request must not write to.
        """
        size = self.rules.rows_per_block
        first_block, last_block = rows.start // size, (rows.end - 1) // size
        num_valid = len(stamps)
        if span.state.is_lost:
            stamps = np.full_like(stamps, LOST)
        table = span.state.tables[self.group_id]
        for ordinal in range(first_block, last_block + 1):
            self._check_write(plane, span, table, ordinal, rows)
            self._memory.epoch[table.block_ids[ordinal]] += 1
        offset = rows.start - first_block * size
        if first_block == last_block:
            target = plane[table.block_ids[first_block]]
            target[offset : offset + num_valid] = stamps
            target[offset + num_valid : rows.end - first_block * size] = GARBAGE
        else:
            slots = self._slots(table, rows)
            flat = plane.reshape(-1)
            flat[slots[:num_valid]] = stamps
            flat[slots[num_valid:]] = GARBAGE
        if plane is self._rows:
            self._note_completed(span, table, rows, num_valid)

    def _slots(self, table: BlockTable, rows: Rows) -> npt.NDArray[np.int64]:
        """Index into the flattened plane of every row."""
        size = self.rules.rows_per_block
        first_block, end_block = rows.start // size, -(-rows.end // size)
        bases = table.ids(first_block, end_block) * size
        slots = (bases[:, None] + np.arange(size)).reshape(-1)
        return slots[rows.start - first_block * size :][: rows.end - rows.start]

    def _check_write(
        self, plane: Stamps, span: Span, table: BlockTable, ordinal: int, rows: Rows
    ) -> None:
        """Whether this request may write its rows to the block, and has not done so before."""
        if ordinal >= len(table):
            raise self._violation("has no block for tokens that it computes", span, ordinal, None)
        block_id = table.block_ids[ordinal]
        problem = self._guard.check_writable(block_id)
        if problem is None and self._memory.owner[block_id] is not span.state.life:
            problem = "writes into a block that it was not given to write"
        if problem is None and self._guard.is_hashed(block_id):
            size = self.rules.rows_per_block
            start = max(rows.start - ordinal * size, 0)
            if (plane[block_id, start : rows.end - ordinal * size] > GARBAGE).any():
                problem = "rewrites rows of a block that is entered under a key"
        if problem is not None:
            raise self._violation(problem, span, ordinal, block_id)

    def _note_completed(self, span: Span, table: BlockTable, rows: Rows, num_valid: int) -> None:
        """Blocks whose last row was written: what is known under their keys is their content."""
        size = self.rules.rows_per_block
        for ordinal in range(rows.start // size, rows.end // size):
            block_id = table.block_ids[ordinal]
            num_tokens = (ordinal + 1) * self.rules.tokens_per_block
            if not self._guard.is_hashed_to(block_id, num_tokens) or span.state.is_lost:
                continue
            if (ordinal + 1) * size > rows.start + num_valid:
                problem = "entered a block under a key although drafts in it were rejected"
                raise self._violation(problem, span, ordinal, block_id)
            digest = span.state.digests[num_tokens]
            other = self._guard.completed(block_id, digest)
            if other is not None:
                problem = "entered a block under a key that names another content"
                raise self._violation(problem, span, ordinal, block_id)

    def _violation(
        self, problem: str, span: Span, ordinal: int, block_id: int | None
    ) -> ContentViolation:
        return ContentViolation(
            problem,
            request_id=span.state.request_id,
            group_id=self.group_id,
            kind=self.rules.kind.value,
            token=ordinal * self.rules.tokens_per_block,
            block_id=block_id,
            writer=None if block_id is None else self._memory.writer_name(block_id),
        )

    def _verify_changed(
        self,
        plane: Stamps,
        span: Span,
        seen: npt.NDArray[np.int64],
        num_rows: int,
        ratio: int,
    ) -> None:
        """Verify rows [0, num_rows), skipping blocks that nothing wrote to since the last time."""
        table = span.state.tables[self.group_id]
        size = self.rules.rows_per_block
        num_blocks = -(-num_rows // size)
        if num_blocks > len(table):
            raise self._violation("has no block for rows that it reads", span, len(table), None)
        epochs = self._memory.epoch[table.ids(0, num_blocks)]
        changed = (epochs != seen[:num_blocks]).nonzero()[0]
        if not len(changed):
            return
        first, end = int(changed[0]), int(changed[-1]) + 1
        rows = Rows(first * size, min(end * size, num_rows))
        self._verify(plane, span, rows, ratio)
        seen[first:end] = epochs[first:end]

    def _verify(self, plane: Stamps, span: Span, rows: Rows, ratio: int) -> None:
        """Compare rows [start, end) with the request's own tokens.

        Args:
            ratio: tokens per row: row i was written from the first (i + 1) * ratio tokens,
                of the draft model's rows from one more where they depend on the next token.

        Raises:
            ContentViolation: at the first row that is wrong.
        """
        if rows.start == rows.end or span.state.is_lost:
            return
        is_draft = plane is self._draft_rows
        ahead = self.rules.draft_ahead if is_draft else 0
        size = self.rules.rows_per_block
        table = span.state.tables[self.group_id]
        first_block, end_block = rows.start // size, -(-rows.end // size)
        if end_block > len(table):
            raise self._violation("has no block for rows that it reads", span, len(table), None)
        offset = rows.start - first_block * size
        found = plane[table.ids(first_block, end_block)].reshape(-1)
        found = found[offset : offset + rows.end - rows.start]
        start_token = (rows.start + 1) * ratio + ahead
        expected = span.state.digests.array[start_token : rows.end * ratio + ahead + 1 : ratio]
        wrong = found != expected
        if ahead and not self._strict_draft:
            wrong[(size - 1 - offset) :: size] = False
        if ahead:
            self._pardon_own_stale_rows(span, rows, found, wrong)
        if wrong.any():
            index = int(wrong.argmax())
            kind = f"{self.rules.kind.value}, draft model" if is_draft else self.rules.kind.value
            raise self._wrong_row(span, rows.start + index, ratio, kind, expected, found, index)

    def _pardon_own_stale_rows(
        self, span: Span, rows: Rows, found: Stamps, wrong: npt.NDArray[np.bool_]
    ) -> None:
        """A session may read the draft rows that went stale when it dropped a token.

        They make its next drafts worse, not its answers: the model verifies every draft.
        """
        for token in span.state.stale_tokens:
            index = token - rows.start
            if 0 <= index < len(wrong) and found[index] == STALE:
                wrong[index] = False

    def _wrong_row(
        self,
        span: Span,
        row: int,
        ratio: int,
        kind: str,
        expected: Stamps,
        found: Stamps,
        index: int,
    ) -> ContentViolation:
        size = self.rules.rows_per_block
        block_id = span.state.tables[self.group_id].block_ids[row // size]
        stamp = int(found[index])
        held = self._memory.group_of[block_id]
        if block_id == NULL_BLOCK_ID:
            problem = "reads the null block"
        elif held not in (self.group_id, NO_GROUP):
            problem = f"reads a block that holds rows of group {held}"
        elif stamp == UNWRITTEN:
            problem = "reads a row that nobody has written"
        elif stamp == GARBAGE:
            problem = "reads a row that a rejected draft left behind"
        elif stamp == LOST:
            problem = "reads a row that a failed load left behind"
        elif stamp == STALE:
            problem = "reads a draft row of a token that its session dropped"
        else:
            problem = "reads a row that was written from other tokens"
        return ContentViolation(
            f"{problem}, to compute tokens [{span.start}, {span.end})",
            request_id=span.state.request_id,
            group_id=self.group_id,
            kind=kind,
            token=(row + 1) * ratio - 1,
            block_id=block_id,
            row=row % size,
            expected=f"{int(expected[index]):#x}",
            found=f"{stamp:#x}",
            writer=self._memory.writer_name(block_id),
        )
