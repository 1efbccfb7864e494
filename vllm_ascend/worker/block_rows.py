# SPDX-License-Identifier: Apache-2.0
"""The rows of one group's block table, on host and device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from vllm.v1.utils import CpuGpuBuffer

from vllm_ascend.worker.dirty_spans import DirtySpans
from vllm_ascend.worker.state_window import ShiftedRows
from vllm_ascend.worker.table_upload import TableUpload


class BlockRows:
    """Block ids of every request of a batch, split into kernel blocks.

    Args:
        num_rows: Rows of the table; the first ``max_num_reqs`` are those of requests.
        max_num_reqs: Requests in a batch.
        max_num_blocks: Blocks of the longest row.
        blocks_per_phys_block: Kernel blocks of a block.
        device: Where the table is read.
        pin_memory: Pin the host's copy.
        shifted: Of a table whose rows begin late.

    Attributes:
        block_table: ``[num_rows, kernel blocks]``, int32, on host and device.
        num_blocks_per_row: ``[max_num_reqs]``, kernel blocks that a row holds.
    """

    def __init__(
        self,
        num_rows: int,
        max_num_reqs: int,
        max_num_blocks: int,
        blocks_per_phys_block: int,
        device: torch.device,
        pin_memory: bool,
        shifted: ShiftedRows | None,
    ) -> None:
        self.device = device
        self.pin_memory = pin_memory
        self.shifted = shifted
        self.blocks_per_phys_block = blocks_per_phys_block
        self.use_hybrid_blocks = blocks_per_phys_block > 1
        self._kernel_blocks = np.arange(blocks_per_phys_block)
        self.block_table = self._make_buffer(
            num_rows, max_num_blocks * blocks_per_phys_block, dtype=torch.int32
        )
        self.num_blocks_per_row = np.zeros(max_num_reqs, dtype=np.int32)
        self._dirty = DirtySpans(num_rows)
        self._upload = TableUpload(self.block_table, pin_memory)

    def append_row(self, block_ids: Sequence[int] | np.ndarray, row_idx: int) -> None:
        """Append blocks to a request's row."""
        if self.shifted is not None:
            block_ids = self.shifted.new_part(block_ids, row_idx)
        if not len(block_ids):
            return
        ids = self._convert_physical_to_logical_blocks(np.asarray(block_ids))
        start = int(self.num_blocks_per_row[row_idx])
        end = start + len(ids)
        self.block_table.np[row_idx, start:end] = ids
        self.num_blocks_per_row[row_idx] = end
        self._dirty.mark(row_idx, start, end)

    def add_row(self, block_ids: Sequence[int] | np.ndarray, row_idx: int) -> None:
        """Fill a row anew."""
        self.begin_row(row_idx)
        self.append_row(block_ids, row_idx)

    def begin_row(self, row_idx: int) -> None:
        """Forget what a row holds."""
        self.num_blocks_per_row[row_idx] = 0
        if self.shifted is not None:
            self.shifted.first_blocks[row_idx] = self.shifted.num_blocks[row_idx] = 0

    def move_on(self, row_idx: int, first_token: int) -> None:
        """Let a shifted row begin at a later token, a multiple of the block size."""
        assert self.shifted is not None
        first_block = first_token // self.shifted.block_size
        dropped = first_block - int(self.shifted.first_blocks[row_idx])
        num_blocks = int(self.num_blocks_per_row[row_idx])
        kept = max(num_blocks - dropped, 0)
        row = self.block_table.np[row_idx]
        row[:kept] = row[num_blocks - kept : num_blocks].copy()
        self.num_blocks_per_row[row_idx] = kept
        self.shifted.first_blocks[row_idx] = first_block
        self._dirty.mark(row_idx, 0, kept)

    def clear_row(self, row_idx: int) -> None:
        """Empty a row."""
        num_blocks = int(self.num_blocks_per_row[row_idx])
        self.block_table.np[row_idx, :num_blocks] = 0
        self.begin_row(row_idx)
        self._dirty.mark(row_idx, 0, num_blocks)

    def move_row(self, src: int, tgt: int) -> None:
        """Copy a row over another one."""
        num_blocks = int(self.num_blocks_per_row[src])
        table = self.block_table.np
        table[tgt, :num_blocks] = table[src, :num_blocks]
        self.num_blocks_per_row[tgt] = num_blocks
        for column in self._columns_beside():
            column[tgt] = column[src]
        self._dirty.mark(tgt, 0, num_blocks)

    def swap_row(self, src: int, tgt: int) -> None:
        """Exchange two rows."""
        rows, swapped = [src, tgt], [tgt, src]
        num_blocks = int(self.num_blocks_per_row[rows].max())
        table = self.block_table.np
        table[rows, :num_blocks] = table[swapped, :num_blocks]
        for column in (self.num_blocks_per_row, *self._columns_beside()):
            column[rows] = column[swapped]
        for row in rows:
            self._dirty.mark(row, 0, num_blocks)

    def _columns_beside(self) -> tuple[np.ndarray, ...]:
        return () if self.shifted is None else (self.shifted.first_blocks, self.shifted.num_blocks)

    def commit_block_table(self, num_reqs: int) -> None:
        """Bring the device's table up to date for the first ``num_reqs`` rows.

        Only what has changed is uploaded, in one copy: of a million tokens a row can take 2 MiB, of
        which a decode step changes one entry.
        """
        self._upload.upload(self._dirty.take(num_reqs), num_reqs)
        # Runners fill the rows behind a padded batch on the device.
        for row in num_reqs + np.flatnonzero(self.num_blocks_per_row[num_reqs:]):
            self._dirty.mark(int(row), 0, int(self.num_blocks_per_row[row]))

    def clear(self) -> None:
        """Empty the table, on host and device."""
        self.block_table.gpu.fill_(0)
        self.block_table.cpu.fill_(0)

    def _convert_physical_to_logical_blocks(self, physical_blocks: np.ndarray) -> np.ndarray:
        """Return the kernel blocks of blocks, in order."""
        if not self.use_hybrid_blocks:
            return physical_blocks
        first = physical_blocks.reshape(-1, 1) * self.blocks_per_phys_block
        return (first + self._kernel_blocks).reshape(-1)

    def get_device_tensor(self, num_reqs: int | None = None) -> torch.Tensor:
        """Return the table on the device: ``[num_reqs, blocks]``, of all rows if ``None``."""
        return self.block_table.gpu if num_reqs is None else self.block_table.gpu[:num_reqs]

    def get_cpu_tensor(self) -> torch.Tensor:
        """Return the host's table."""
        return self.block_table.cpu

    def get_numpy_array(self) -> np.ndarray:
        """Return the host's table."""
        return self.block_table.np

    def _make_buffer(self, *size: int, dtype: torch.dtype) -> CpuGpuBuffer:
        return CpuGpuBuffer(*size, dtype=dtype, device=self.device, pin_memory=self.pin_memory)
