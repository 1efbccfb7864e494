# SPDX-License-Identifier: Apache-2.0
"""Bounded buffers between the device and a store: objects side by side, headers included.

A buffer holds the objects with rows first, then the tails. Rows are gathered into it, or scattered
from it, once per tensor, and it crosses between device and host in one transfer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vllm_ascend.tier.layout import GroupLayout, TierLayout
from vllm_ascend.tier.objects import HEADER_BYTES, Bytes
from vllm_ascend.tier.orders import Run
from vllm_ascend.tier.row_views import RowView


class StagingError(ValueError):
    """A buffer is too small for what it has to hold."""


class Shapes:
    """The sizes of objects, as the tensors of a worker have them."""

    def __init__(self, layout: TierLayout, views: Sequence[RowView]) -> None:
        """Add the views of each group up."""
        of_group: dict[int, list[RowView]] = {}
        for view in views:
            of_group.setdefault(view.group_id, []).append(view)
        unit = layout.unit
        rows = [(group, unit // group.tokens_per_row) for group in layout.rows]
        tails = [(group, group.tail_rows) for group in layout.tails]
        # Kind of object -> per group, its place among a run's segments, views, rows of an object.
        self.parts: Mapping[bool, list[tuple[int, list[RowView], int]]] = {
            False: _parts(rows, of_group),
            True: _parts(tails, of_group),
        }
        self.num_bytes = {
            kind: HEADER_BYTES + sum(n * view.row_bytes for _, vs, n in parts for view in vs)
            for kind, parts in self.parts.items()
        }


def _parts(
    groups: Iterable[tuple[GroupLayout, int]], views: Mapping[int, list[RowView]]
) -> list[tuple[int, list[RowView], int]]:
    return [(place, views[g.group_id], rows) for place, (g, rows) in enumerate(groups)]


class Staging:
    """One buffer.

    Attributes:
        host: The buffer on the host, as bytes.
    """

    def __init__(self, num_bytes: int, device: torch.device, *, pin_memory: bool) -> None:
        host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pin_memory)
        self._host = host
        self._device = host if device.type == "cpu" else torch.empty_like(host, device=device)
        self.host: Bytes = host.numpy()
        self._read: Any = None

    def objects(self, shapes: Shapes, runs: Sequence[Run]) -> tuple[list[bytes], list, list[Bytes]]:
        """Return keys, places and bytes of all objects of some runs, in the order of the buffer.

        Raises:
            StagingError: They do not fit.
        """
        keys: list[bytes] = []
        places: list = []
        data: list[Bytes] = []
        start = 0
        for kind in (False, True):
            size = shapes.num_bytes[kind]
            for run in (run for run in runs if run.is_tail == kind):
                keys += run.keys
                places += run.places
                for _ in run.keys:
                    data.append(self.host[start : start + size])
                    start += size
        if start > len(self.host):
            raise StagingError(f"{start:,} bytes do not fit in a buffer of {len(self.host):,}")
        return keys, places, data

    def gather(self, shapes: Shapes, runs: Sequence[Run]) -> torch.Event | None:
        """Copy the rows of all objects from the device; ``None``, or what tells when it is done."""
        used = self._move(shapes, runs, is_load=False)
        if self._device is self._host:
            return None
        self._host[:used].copy_(self._device[:used], non_blocking=True)
        return self._recorded_event()

    def scatter(self, shapes: Shapes, runs: Sequence[Run]) -> None:
        """Copy the rows of all objects to where the runs say, in the order of the stream."""
        if self._device is not self._host:
            used = sum(shapes.num_bytes[run.is_tail] * len(run.keys) for run in runs)
            self._device[:used].copy_(self._host[:used], non_blocking=True)
            self._read = self._recorded_event()
        self._move(shapes, runs, is_load=True)

    def wait_until_read(self) -> None:
        """Wait until the device has read what was scattered last, so that it may be overwritten."""
        if self._read is not None:
            self._read.synchronize()
            self._read = None

    def _recorded_event(self) -> torch.Event:
        event = torch.Event(self._device.device.type)
        event.record()
        return event

    def _move(self, shapes: Shapes, runs: Sequence[Run], *, is_load: bool) -> int:
        """Move rows between tensors and buffer; return how many bytes of the buffer are used."""
        start = 0
        for kind in (False, True):
            of_kind = [run for run in runs if run.is_tail == kind]
            num_objects, size = sum(len(run.keys) for run in of_kind), shapes.num_bytes[kind]
            if not num_objects:
                continue
            end = start + num_objects * size
            objects = self._device[start:end].view(num_objects, size)
            offset = HEADER_BYTES
            for place, views, num_rows in shapes.parts[kind]:
                rows = _Places(of_kind, place, self._device.device, self._host.is_pinned())
                moved: Sequence[Any] = rows.to_write() if is_load else rows.all()
                for view in views:
                    width = num_rows * view.row_bytes
                    pieces = view.rows.shape[1]
                    part = objects[:, offset : offset + width]
                    part = part.view(num_objects, num_rows, pieces, -1)
                    (view.scatter if is_load else view.gather)(part, *moved)
                    offset += width
            start = end
        return start


class _Places:
    """Where the rows of one group lie, of all objects of some runs."""

    def __init__(
        self, runs: Sequence[Run], place: int, device: torch.device, pin_memory: bool
    ) -> None:
        found = [run.segments[place].places() for run in runs]
        self._blocks, self._places, self._moved = map(np.concatenate, zip(*found, strict=True))
        self._device, self._pin_memory = device, pin_memory

    def all(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return block and place of every row, on the device."""
        return self._tensor(self._blocks), self._tensor(self._places)

    def to_write(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the same of the rows that are written, and which these are; ``None``: all."""
        if self._moved.all():
            return (*self.all(), None)
        chosen = np.flatnonzero(self._moved)
        blocks, places = self._blocks[chosen], self._places[chosen]
        return self._tensor(blocks), self._tensor(places), self._tensor(chosen)

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        if self._pin_memory:  # else the host would wait for everything in front of the copy
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=self._pin_memory)


def split_to_fit(shapes: Shapes, runs: Sequence[Run], num_bytes: int) -> list[list[Run]]:
    """Cut runs into lists that fit in a buffer each, in order.

    Raises:
        StagingError: One object does not fit.
    """
    lists: list[list[Run]] = [[]]
    room = num_bytes
    for run in runs:
        size, start = shapes.num_bytes[run.is_tail], 0
        if size > num_bytes:
            raise StagingError(f"an object of {size:,} bytes does not fit in {num_bytes:,}")
        while start < len(run.keys):
            count = min(len(run.keys) - start, room // size)
            if not count:
                lists.append([])
                room = num_bytes
                continue
            lists[-1].append(run.part(start, start + count))
            start, room = start + count, room - count * size
    return lists
