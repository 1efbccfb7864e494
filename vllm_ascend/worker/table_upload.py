# SPDX-License-Identifier: Apache-2.0
"""Brings scattered changes of a host's table to the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from vllm.v1.utils import CpuGpuBuffer

# Entries of 8 bytes that a staging buffer holds; a step that changes more uploads whole rows.
_MAX_ENTRIES = 16_384


class TableUpload:
    """Uploads spans of a table's rows: one copy, whatever their number.

    On an NPU each copy is a launch, and with 256 requests that decode up to 128 rows change in a
    step. So changed entries are gathered into a staging buffer as pairs (place in the table,
    value), which travel together and are scattered on the device.

    A copy from pinned memory may still be under way when the host prepares the next step, which
    then fills the other one of two buffers. The step after that is prepared only when this one's
    inputs have been read: runners that prepare steps ahead wait for it.

    Args:
        table: What is uploaded, ``[rows, columns]``, int32.
        pin_memory: Pin the staging buffers.
    """

    def __init__(self, table: CpuGpuBuffer, pin_memory: bool) -> None:
        self._table = table
        # A place is an int32. Beyond that there is nothing to stage in, and rows go whole.
        num_places = table.cpu.numel()
        self._capacity = min(_MAX_ENTRIES, num_places) if num_places < 1 << 31 else 0
        self._staging = [
            CpuGpuBuffer(
                self._capacity, 2, dtype=torch.int32, device=table.gpu.device, pin_memory=pin_memory
            )
            for _ in range(2)
        ]

    def upload(self, spans: Sequence[tuple[int, int, int]], num_rows: int) -> None:
        """Upload columns ``[start, end)`` of every ``(row, start, end)``.

        Args:
            spans: At most one for each row, none of them empty.
            num_rows: All rows of ``spans`` are below it.
        """
        if not spans:
            return
        rows, starts, ends = np.array(spans, dtype=np.int64).T
        counts = ends - starts
        num_entries = int(counts.sum())
        if num_entries > self._capacity:
            self._table.copy_to_gpu(num_rows)
            return
        first_places = rows * self._table.np.shape[1] + starts
        entries_before = np.cumsum(counts) - counts
        places = np.repeat(first_places - entries_before, counts) + np.arange(num_entries)
        buffer = self._staging[0]
        self._staging.reverse()
        buffer.np[:num_entries, 0] = places
        buffer.np[:num_entries, 1] = self._table.np.reshape(-1)[places]
        staged = buffer.copy_to_gpu(num_entries)
        self._table.gpu.view(-1).index_copy_(0, staged[:, 0].long(), staged[:, 1])
