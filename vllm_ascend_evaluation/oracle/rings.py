# SPDX-License-Identifier: Apache-2.0
"""Compressor state in a ring per request, and snapshots of it in the blocks of windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from vllm_ascend.core.ring_tails import layout
from vllm_ascend.core.ring_tails.orders import RingCopy, orders_of
from vllm_ascend_evaluation.oracle.digests import GARBAGE, LOST, UNWRITTEN, Stamps
from vllm_ascend_evaluation.oracle.errors import ContentViolation
from vllm_ascend_evaluation.oracle.groups import GroupRules, Kind
from vllm_ascend_evaluation.oracle.reads import Rows, state_rows_read
from vllm_ascend_evaluation.oracle.request_state import RequestState, Span
from vllm_ascend_evaluation.oracle.shadow_memory import Life

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

_KIND = "ring of compressor state"
_OVERLAPPING_RATIO = 4
_NEVER = 1 << 62


class _Compressor(NamedTuple):
    """What compressors of one ratio keep.

    Attributes:
        num_rows: of a ring; row p % num_rows is that of token p.
    """

    ratio: int
    is_overlapping: bool
    num_rows: int

    def kept(self, boundary: int) -> Rows:
        """The tokens whose rows a snapshot at a boundary holds."""
        return state_rows_read(boundary, ratio=self.ratio, overlapping=self.is_overlapping)


class Rings:
    """The rings of all requests during steps, and the snapshots that were taken of them.

    Args:
        rules: of the KV cache groups; every compression ratio among them has a compressor.
        num_drafts: draft tokens of a step.
    """

    def __init__(self, rules: Sequence[GroupRules], num_drafts: int) -> None:
        ratios = sorted({r.ratio for r in rules if r.kind is Kind.FULL and r.ratio > 1})
        self._compressors: list[_Compressor] = []
        for ratio in ratios:
            is_overlapping = ratio == _OVERLAPPING_RATIO
            num_rows = layout.ring_rows(ratio * (1 + is_overlapping), num_drafts)
            self._compressors.append(_Compressor(ratio, is_overlapping, num_rows))
        self._of_life: WeakKeyDictionary[Life, list[Stamps]] = WeakKeyDictionary()
        # Block id -> the stamps that it carries, for every compressor.
        self._snapshots: dict[int, list[Stamps]] = {}
        self._to_take: dict[str, list[RingCopy]] = {}

    def take_late(self, output: SchedulerOutput, states: Mapping[str, RequestState]) -> None:
        """Take the snapshots that come first, also of requests that have ended."""
        for order in orders_of(output).late:
            self._take(order, Span(states[order.request_id], _NEVER, _NEVER, _NEVER))

    def start_step(self, output: SchedulerOutput, states: Mapping[str, RequestState]) -> None:
        """Restore what the step restores, and note what it is to take.

        Raises:
            ContentViolation: A snapshot is not there, or is of other tokens.
        """
        orders = orders_of(output)
        for order in orders.restores:
            self._restore(order, states[order.request_id])
        self._to_take = {}
        for order in orders.snapshots:
            self._to_take.setdefault(order.request_id, []).append(order)

    def lose(self, block_id: int) -> None:
        """A block was given to somebody: what it carried is lost."""
        self._snapshots.pop(block_id, None)

    def before_writes(self, spans: Sequence[Span]) -> None:
        """Check the rows of earlier steps that are read, then take the snapshots."""
        for span in spans:
            self._check_reads(span)
            for order in self._to_take.pop(span.state.request_id, ()):
                self._take(order, span)
        for name, order in ((name, orders[0]) for name, orders in self._to_take.items()):
            problem = "is to have a snapshot taken in a step that computes nothing of it"
            raise _violation(problem, name, order.boundary)

    def write(self, spans: Sequence[Span]) -> None:
        """Write the rows of every request's tokens."""
        for span in spans:
            for compressor, ring in zip(self._compressors, self._rings(span.state), strict=True):
                start = max(span.start, span.end - compressor.num_rows)
                tokens = np.arange(start, span.end)
                ring[tokens % compressor.num_rows] = _written(span, tokens)

    def after_writes(self, spans: Sequence[Span]) -> None:
        """Nothing: a step's own rows come from the step."""

    write_drafts = after_drafts = after_writes

    def _rings(self, state: RequestState) -> list[Stamps]:
        rings = self._of_life.get(state.life)
        if rings is None:
            sizes = [compressor.num_rows for compressor in self._compressors]
            rings = self._of_life[state.life] = [np.zeros(size, np.uint64) for size in sizes]
        return rings

    def _check_reads(self, span: Span) -> None:
        if span.state.is_lost:
            return
        for compressor, ring in zip(self._compressors, self._rings(span.state), strict=True):
            tokens = np.arange(*compressor.kept(span.start))
            _compare("reads", ring[tokens % compressor.num_rows], tokens, span.state)

    def _take(self, order: RingCopy, span: Span) -> None:
        snapshot: list[Stamps] = []
        for compressor, ring in zip(self._compressors, self._rings(span.state), strict=True):
            tokens = np.arange(*compressor.kept(order.boundary))
            in_step = tokens >= span.start
            stamps = ring[tokens % compressor.num_rows]
            stamps[in_step] = _written(span, tokens[in_step])
            snapshot.append(stamps)
        for block_id in order.slot:
            self._snapshots[block_id] = snapshot

    def _restore(self, order: RingCopy, state: RequestState) -> None:
        if order.boundary != state.num_computed_tokens:
            problem = f"restores a ring and goes on behind {state.num_computed_tokens} tokens"
            raise _violation(problem, state.request_id, order.boundary)
        rings = self._rings(state)
        for block_id in order.slot:
            snapshot = self._snapshots.get(block_id)
            if snapshot is None:
                problem = "restores a ring from a block that carries no snapshot"
                raise _violation(problem, state.request_id, order.boundary, block_id)
            for compressor, ring, stamps in zip(self._compressors, rings, snapshot, strict=True):
                tokens = np.arange(*compressor.kept(order.boundary))
                _compare("restores", stamps, tokens, state)
                ring[tokens % compressor.num_rows] = stamps


def _written(span: Span, tokens: np.ndarray) -> Stamps:
    """The stamps of rows that a step computes; garbage for rejected drafts, and behind it."""
    stamps = np.full(len(tokens), GARBAGE, np.uint64)
    is_real = tokens < span.valid_end
    stamps[is_real] = span.state.digests.array[tokens[is_real] + 1]
    return np.full_like(stamps, LOST) if span.state.is_lost else stamps


def _compare(verb: str, found: Stamps, tokens: np.ndarray, state: RequestState) -> None:
    """Check that rows are those of a request's own tokens."""
    wrong = found != state.digests.array[tokens + 1]
    if not wrong.any():
        return
    index = int(wrong.argmax())
    left_by = {UNWRITTEN: "that nobody has written", GARBAGE: "that a rejected draft left behind"}
    what = left_by.get(int(found[index]), "that was written from other tokens")
    raise _violation(f"{verb} a ring's row {what}", state.request_id, int(tokens[index]))


def _violation(
    problem: str, request_id: str, token: int, block_id: int | None = None
) -> ContentViolation:
    return ContentViolation(
        problem, request_id=request_id, kind=_KIND, token=token, block_id=block_id
    )
