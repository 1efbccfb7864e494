# SPDX-License-Identifier: Apache-2.0
"""Block tables whose groups may store one row for many tokens.

Row ``p // ratio`` of a compressed group exists once token ``p`` with ``(p + 1) % ratio == 0`` is
computed: that token's slot is the row's, every other token has none (``PAD_SLOT_ID``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from vllm.utils.math_utils import cdiv
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.kv_cache_interface import KVCacheGroupSpec
from vllm.v1.worker import block_table as vllm_block_table
from vllm.v1.worker.cp_utils import get_total_cp_world_size

from vllm_ascend.core.specs import compress_ratio


class BlockTable(vllm_block_table.BlockTable):
    """The block ids of every request of a batch, for one KV cache group.

    Args:
        block_size: Rows of a block.
        max_num_reqs: Requests in a batch.
        max_num_blocks_per_req: Blocks of a request if every token had a row.
        max_num_batched_tokens: Tokens in a batch.
        pin_memory: Pin the host's copy.
        device: Where the table is read.
        kernel_sizes: Block sizes that the kernels support, the preferred one first; none or
            ``[0]``: whole blocks.
        cp_kv_cache_interleave_size: Tokens that lie together on one context-parallel rank.
        num_speculative_tokens: Draft tokens of a step (room for their slots).
        kv_cache_group: The group; ``None``: one row per token.

    Raises:
        ValueError: No supported kernel size divides ``block_size``.
    """

    def __init__(
        self,
        block_size: int,
        max_num_reqs: int,
        max_num_blocks_per_req: int,
        max_num_batched_tokens: int,
        pin_memory: bool,
        device: torch.device,
        kernel_sizes: list[int] | None = None,
        cp_kv_cache_interleave_size: int = 1,
        num_speculative_tokens: int = 0,
        kv_cache_group: KVCacheGroupSpec | None = None,
    ) -> None:
        spec = None if kv_cache_group is None else kv_cache_group.kv_cache_spec
        self.compress_ratio = 1 if spec is None else compress_ratio(spec)
        self.kernel_sizes = kernel_sizes
        self.physical_block_size = block_size
        super().__init__(
            block_size,
            max_num_reqs,
            max(cdiv(max_num_blocks_per_req, self.compress_ratio), 1),
            max_num_batched_tokens + 2 * max_num_reqs * max(num_speculative_tokens, 1),
            pin_memory,
            device,
            _kernel_block_size(block_size, kernel_sizes),
            cp_kv_cache_interleave_size,
        )
        self.max_num_batched_tokens = max_num_batched_tokens

    @property
    def blocks_per_phys_block(self) -> int:
        """Kernel blocks that one block is split into."""
        return self.blocks_per_kv_block

    def compute_slot_mapping(
        self,
        num_reqs: int,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
    ) -> None:
        """Fill ``slot_mapping`` for the tokens of a step.

        Args:
            num_reqs: Requests in the batch.
            query_start_loc: ``[num_reqs + 1]``, where each request's tokens start.
            positions: ``[num_tokens]``, every token's place in its request.
        """
        if self.compress_ratio == 1:
            super().compute_slot_mapping(num_reqs, query_start_loc, positions)
            return
        requests = torch.repeat_interleave(
            torch.arange(num_reqs, device=positions.device),
            (query_start_loc[1 : num_reqs + 1] - query_start_loc[:num_reqs]).long(),
            output_size=len(positions),
        )
        slots = self._slots(self.block_table.gpu, requests, positions // self.compress_ratio)
        closes_row = (positions + 1) % self.compress_ratio == 0
        mapping = self.slot_mapping.gpu
        mapping[: len(positions)] = torch.where(closes_row, slots, PAD_SLOT_ID)
        mapping[len(positions) :].fill_(PAD_SLOT_ID)

    def compute_slot_mapping_draft(self, req_indices: np.ndarray, positions: np.ndarray) -> None:
        """Fill ``slot_mapping`` for rows (not tokens) that the caller has counted itself.

        Args:
            req_indices: ``[num_rows]``, the request of every row.
            positions: ``[num_rows]``, the row's place in its request.
        """
        slots = self._slots(
            self.block_table.cpu, torch.as_tensor(req_indices).long(), torch.as_tensor(positions)
        )
        self.slot_mapping.cpu[: len(slots)] = slots
        self.slot_mapping.copy_to_gpu(len(slots))

    def get_device_tensor(self, num_reqs: int | None = None) -> torch.Tensor:
        """Return the table on the device: ``[num_reqs, blocks]``, of all rows if ``None``."""
        return self.block_table.gpu if num_reqs is None else self.block_table.gpu[:num_reqs]

    def _slots(
        self, table: torch.Tensor, requests: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        blocks = table[requests, (rows // self.block_size).long()].long()
        return blocks * self.block_size + rows % self.block_size


class MultiGroupBlockTable(vllm_block_table.MultiGroupBlockTable):
    """One :class:`BlockTable` for each KV cache group.

    Args:
        max_num_reqs: Requests in a batch.
        max_model_len: Tokens of the longest request.
        max_num_batched_tokens: Tokens in a batch.
        pin_memory: Pin the host's copies.
        device: Where the tables are read.
        block_sizes: Rows of a block, of every group.
        num_speculative_tokens: Draft tokens of a step.
        max_num_blocks: Blocks of the longest request, of every group, as if each token had a row.
        kernel_sizes: Supported kernel block sizes, of every group (or one list for all).
        cp_kv_cache_interleave_size: Tokens that lie together on one context-parallel rank.
        kv_cache_groups: The groups; ``None``: none of them is compressed.

    Raises:
        ValueError: The lists' lengths differ.
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        pin_memory: bool,
        device: torch.device,
        block_sizes: list[int],
        num_speculative_tokens: int = 0,
        max_num_blocks: list[int] | None = None,
        kernel_sizes: list[list[int]] | None = None,
        cp_kv_cache_interleave_size: int = 1,
        kv_cache_groups: Sequence[KVCacheGroupSpec] | None = None,
    ) -> None:
        num_groups = len(block_sizes)
        kernel_sizes = kernel_sizes or [[0]]
        if len(kernel_sizes) == 1:
            kernel_sizes = kernel_sizes * num_groups
        if max_num_blocks is None:
            ranks = get_total_cp_world_size()
            max_num_blocks = [cdiv(max_model_len, size * ranks) for size in block_sizes]
        groups = [None] * num_groups if kv_cache_groups is None else list(kv_cache_groups)
        for name, values in (
            ("kernel_sizes", kernel_sizes),
            ("max_num_blocks", max_num_blocks),
            ("kv_cache_groups", groups),
        ):
            if len(values) != num_groups:
                raise ValueError(
                    f"{name} length ({len(values)}) must match block_sizes length ({num_groups})"
                )
        self.block_tables = [
            BlockTable(
                block_size,
                max_num_reqs,
                num_blocks,
                max_num_batched_tokens,
                pin_memory,
                device,
                sizes,
                cp_kv_cache_interleave_size,
                num_speculative_tokens,
                group,
            )
            for block_size, sizes, num_blocks, group in zip(
                block_sizes, kernel_sizes, max_num_blocks, groups, strict=True
            )
        ]

    def compute_slot_mapping(
        self,
        num_reqs: int,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        positions_compressed_list: list[np.ndarray] | None = None,
        req_indices_compressed_list: list[np.ndarray] | None = None,
    ) -> None:
        """Fill every group's ``slot_mapping``.

        With the last two arguments (rows and their requests, of every group) the slots are those
        of rows, packed; without them those of tokens, padded where a token closes no row.
        """
        if positions_compressed_list and req_indices_compressed_list:
            self._compute_row_slots(req_indices_compressed_list, positions_compressed_list)
        else:
            super().compute_slot_mapping(num_reqs, query_start_loc, positions)

    def compute_slot_mapping_draft(
        self,
        req_indices: np.ndarray,
        positions: np.ndarray,
        positions_compressed_list: list[np.ndarray] | None = None,
        req_indices_compressed_list: list[np.ndarray] | None = None,
    ) -> None:
        """Fill every group's ``slot_mapping`` for rows: the same in all groups, or each its own."""
        num_groups = len(self.block_tables)
        if positions_compressed_list and req_indices_compressed_list:
            self._compute_row_slots(req_indices_compressed_list, positions_compressed_list)
        else:
            self._compute_row_slots([req_indices] * num_groups, [positions] * num_groups)

    def _compute_row_slots(
        self, req_indices: Sequence[np.ndarray], positions: Sequence[np.ndarray]
    ) -> None:
        for table, requests, rows in zip(self.block_tables, req_indices, positions, strict=True):
            table.compute_slot_mapping_draft(requests, rows)


def _kernel_block_size(block_size: int, kernel_sizes: list[int] | None) -> int:
    if kernel_sizes is None or kernel_sizes == [0]:
        return block_size
    for size in kernel_sizes:
        if size > 0 and block_size % size == 0:
            return size
    raise ValueError(
        f"None of the kernel sizes {kernel_sizes} can divide physical block size {block_size} "
        "evenly"
    )
