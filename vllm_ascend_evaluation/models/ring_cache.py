# SPDX-License-Identifier: Apache-2.0
"""Compressor state in a ring per request, a prototype: see ``docs/ring-tails.md``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.ring_tails.layout import ring_rows, snapshot_rows
from vllm_ascend.core.ring_tails.orders import RingCopy, orders_of
from vllm_ascend_evaluation.models.paged_cache import RequestSlice

RING_WORKER = "vllm_ascend_evaluation.models.ring_worker.RingWorker"
"""``worker_cls`` of an engine whose DeepSeek-V4 has its compressor state in rings."""


def has_rings(vllm_config: VllmConfig) -> bool:
    """Whether an engine's DeepSeek-V4 has its compressor state in rings."""
    return vllm_config.parallel_config.worker_cls == RING_WORKER


class RingStep:
    """A step, as the rings of all layers see it.

    Args:
        output: What the scheduler told the worker.
        input_batch: The model runner's batch, which is in the step's order once the model runs.
    """

    def __init__(self, output: Any, input_batch: Any) -> None:
        self._scheduled = output.num_scheduled_tokens
        self._input_batch = input_batch
        self.finished_req_ids = output.finished_req_ids
        orders = orders_of(output)
        self.late, self.restores = orders.late, orders.restores
        self.snapshots: dict[str, list[RingCopy]] = {}
        for order in orders.snapshots:
            self.snapshots.setdefault(order.request_id, []).append(order)

    def request_ids(self) -> list[str]:
        """Return the requests that have tokens in the step, in the order of the batch."""
        return [name for name in self._input_batch.req_ids if self._scheduled.get(name)]


class RingCache:
    """One compressor's state: a ring for each request, and snapshots of rings.

    Args:
        spec: What a row holds, and over how many tokens the compressor looks back.
        num_drafts: Draft tokens of a step.
    """

    def __init__(self, spec: KVCacheSpec, num_drafts: int) -> None:
        self._shape = (ring_rows(spec.sliding_window, num_drafts), spec.head_size)
        self._num_kept = snapshot_rows(spec.sliding_window)
        self._rings: dict[str, torch.Tensor] = {}
        # By block id: of equal rows a hit may find one group's block here, another's there.
        self._snapshots: dict[int, torch.Tensor] = {}
        self._step: RingStep | None = None

    def begin(self, step: RingStep) -> None:
        """Begin a step: take late snapshots, forget requests that have ended, restore rings."""
        self._step = step
        for order in step.late:
            ring = self._rings[order.request_id]
            self._snapshot(order, ring, ring[:0], order.boundary)
        for request_id in step.finished_req_ids:
            self._rings.pop(request_id, None)
        for order in step.restores:
            self._restore(order)

    def read_request(self, index: int, start: int, end: int) -> torch.Tensor:
        """Return the rows of a request's tokens [start, end), of earlier steps.

        Args:
            index: Which of the step's requests.
            start: First token.
            end: Behind the last token.

        Returns:
            ``[end - start, row size]``.
        """
        return self._ring(self._request_ids()[index])[self._places(start, end)]

    def keep(self, rows: torch.Tensor, requests: Sequence[RequestSlice]) -> None:
        """Take the step's snapshots, and keep the rows of its tokens.

        Args:
            rows: ``[num_tokens, row size]``.
            requests: Whose tokens are where.
        """
        assert self._step is not None
        for name, request in zip(self._request_ids(), requests, strict=True):
            ring, own = self._ring(name), rows[request.tokens]
            for order in self._step.snapshots.get(name, ()):
                self._snapshot(order, ring, own, request.start)
            start = max(request.start, request.end - len(ring))
            ring[self._places(start, request.end)] = own[start - request.start :]

    def _snapshot(self, order: RingCopy, ring: torch.Tensor, own: torch.Tensor, start: int) -> None:
        """Take a snapshot of rows that the step computes from ``start`` on, or found in the ring.

        Of every row it holds the half that the next window reads.
        """
        first = order.boundary - self._num_kept
        split = min(max(start, first), order.boundary)
        before = ring[self._places(first, split)]
        inside = own[max(first - start, 0) : max(order.boundary - start, 0)]
        values, scores = torch.cat([before, inside]).chunk(2, dim=-1)
        width = values.shape[1] // 2
        snapshot = torch.cat([values[:, :width], scores[:, :width]], dim=-1)
        self._snapshots.update(dict.fromkeys(order.slot, snapshot))

    def _restore(self, order: RingCopy) -> None:
        ring = self._rings[order.request_id] = self._empty()
        values, scores = self._snapshots[order.slot[0]].chunk(2, dim=-1)
        rows = self._empty()[: self._num_kept]
        width = rows.shape[1] // 4
        rows[:, :width], rows[:, 2 * width : 3 * width] = values, scores
        ring[self._places(order.boundary - self._num_kept, order.boundary)] = rows

    def _request_ids(self) -> list[str]:
        assert self._step is not None
        return self._step.request_ids()

    def _ring(self, request_id: str) -> torch.Tensor:
        if request_id not in self._rings:
            self._rings[request_id] = self._empty()
        return self._rings[request_id]

    def _empty(self) -> torch.Tensor:
        """Return a ring that makes an answer worthless if what nobody wrote is read."""
        return torch.full(self._shape, torch.nan, dtype=torch.float32)

    def _places(self, start: int, end: int) -> torch.Tensor:
        return torch.arange(start, end) % self._shape[0]
