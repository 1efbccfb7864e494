# SPDX-License-Identifier: Apache-2.0
"""Mamba states in vLLM's align mode: one running state per request, kept at block boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from vllm_ascend_evaluation.oracle.digests import GARBAGE, UNWRITTEN
from vllm_ascend_evaluation.oracle.errors import ContentViolation
from vllm_ascend_evaluation.oracle.groups import GroupRules
from vllm_ascend_evaluation.oracle.guard import BlockGuard
from vllm_ascend_evaluation.oracle.request_state import RequestState, Span
from vllm_ascend_evaluation.oracle.shadow_memory import Life, ShadowMemory


@dataclass
class _Running:
    """Where a request's state is.

    Attributes:
        ordinal: of the block that holds the running state.
        accepted: with drafts, the state after the n-th token lies n - 1 blocks behind it.
    """

    ordinal: int
    accepted: int = 1


class MambaGroup:
    """A block holds one state, stamped with the tokens that it sums up.

    As vLLM's worker does: before a step the state is copied to the block that the step ends in;
    the step updates it there, with drafts one block further for every draft; after the step a
    state that falls on a block boundary is copied to that block, where a hit will look for it.
    """

    def __init__(
        self, group_id: int, rules: GroupRules, memory: ShadowMemory, guard: BlockGuard
    ) -> None:
        self.group_id = group_id
        self.rules = rules
        self._memory = memory
        self._guard = guard
        self._states = memory.rows[group_id]
        self._running: WeakKeyDictionary[Life, _Running] = WeakKeyDictionary()

    def before_writes(self, spans: Sequence[Span]) -> None:
        """Copy states to where the step wants them; check what the step starts from."""
        copies = [copy for span in spans if (copy := self._move_running(span)) is not None]
        # All sources first: the worker copies in one batch.
        stamps = [int(self._states[self._block(span, source), 0]) for span, source, _ in copies]
        for (span, _, target), stamp in zip(copies, stamps, strict=True):
            self._store(span, target, stamp)
        for span in spans:
            if span.start:
                self._check_initial_state(span)

    def write(self, spans: Sequence[Span]) -> None:
        """Update the running states; drafts leave theirs in the blocks behind."""
        for span in spans:
            ordinal = self._running[span.state.life].ordinal
            num_real = span.end - span.num_drafts
            for draft in range(span.num_drafts + 1):
                real = draft <= span.num_accepted
                stamp = span.state.digests[num_real + draft] if real else GARBAGE
                self._store(span, ordinal + draft, stamp)

    def after_writes(self, spans: Sequence[Span]) -> None:
        """Keep the states that fall on block boundaries."""
        for span in spans:
            running = self._running[span.state.life]
            running.accepted = span.num_accepted + 1
            num_real = span.end - span.num_drafts
            tokens_per_block = self.rules.tokens_per_block
            target = span.valid_end // tokens_per_block - 1
            behind = (target + 1) * tokens_per_block - num_real
            if behind < 0:
                continue
            if behind or target != running.ordinal:
                source = self._block(span, running.ordinal + behind)
                self._store(span, target, int(self._states[source, 0]))
            if target == running.ordinal:
                running.accepted = 1

    def spoil(self, state: RequestState, start: int, end: int) -> None:
        """Drafts leave their states behind those of real tokens: nothing has to be forgotten."""

    def write_drafts(self, spans: Sequence[Span]) -> None:
        """Draft models have no Mamba layers."""

    def after_drafts(self, spans: Sequence[Span]) -> None:
        """Draft models have no Mamba layers."""

    def _move_running(self, span: Span) -> tuple[Span, int, int] | None:
        """Decide where the state goes; (span, source ordinal, target ordinal) if it moves."""
        tokens_per_block = self.rules.tokens_per_block
        target = -(-span.end // tokens_per_block) - 1
        running = self._running.get(span.state.life)
        if running is None:
            running = _Running((span.start - 1) // tokens_per_block)
        self._running[span.state.life] = running
        if running.ordinal == -1 or running.ordinal == target:
            running.ordinal = target
            return None
        copy = (span, running.ordinal + running.accepted - 1, target)
        running.ordinal, running.accepted = target, 1
        return copy

    def _check_initial_state(self, span: Span) -> None:
        running = self._running[span.state.life]
        block_id = self._block(span, running.ordinal + running.accepted - 1)
        found, expected = int(self._states[block_id, 0]), span.state.digests[span.start]
        if found == expected:
            return
        names = {UNWRITTEN: "a state that nobody has written", GARBAGE: "a rejected draft's state"}
        raise ContentViolation(
            f"starts from {names.get(found, 'a state of other tokens')}",
            request_id=span.state.request_id,
            group_id=self.group_id,
            kind=self.rules.kind.value,
            token=span.start,
            block_id=block_id,
            row=0,
            expected=f"{expected:#x}",
            found=f"{found:#x}",
            writer=self._memory.writer_name(block_id),
        )

    def _block(self, span: Span, ordinal: int) -> int:
        block_ids = span.state.tables[self.group_id].block_ids
        if ordinal < len(block_ids):
            return block_ids[ordinal]
        raise self._violation("has no block for its state", span.state, ordinal, None)

    def _store(self, span: Span, ordinal: int, stamp: int) -> None:
        block_id = self._block(span, ordinal)
        problem = self._guard.check_writable(block_id)
        if problem is None and self._memory.owner[block_id] is not span.state.life:
            problem = "writes a state into a block that it was not given to write"
        if problem is not None:
            raise self._violation(problem, span.state, ordinal, block_id)
        self._states[block_id, 0] = stamp

    def _violation(
        self, problem: str, state: RequestState, ordinal: int, block_id: int | None
    ) -> ContentViolation:
        return ContentViolation(
            problem,
            request_id=state.request_id,
            group_id=self.group_id,
            kind=self.rules.kind.value,
            token=ordinal * self.rules.tokens_per_block,
            block_id=block_id,
            writer=None if block_id is None else self._memory.writer_name(block_id),
        )
