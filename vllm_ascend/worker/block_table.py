# SPDX-License-Identifier: Apache-2.0
"""Block tables whose groups may store one row for many tokens.

Row ``p // ratio`` of a compressed group exists once token ``p`` with ``(p + 1) % ratio == 0`` is
computed: that token's slot is the row's, every other token has none (``PAD_SLOT_ID``).

The classes have the names, arguments and attributes of vllm-ascend's, whose runner, input batch
and 310P tables build on them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from vllm.distributed import get_dcp_group, get_pcp_group
from vllm.utils.math_utils import cdiv
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.kv_cache_interface import KVCacheGroupSpec
from vllm.v1.worker import block_table as vllm_block_table

from vllm_ascend.core.layout.specs import compress_ratio, is_compressor_state
from vllm_ascend.worker.block_rows import BlockRows
from vllm_ascend.worker.state_window import (
    ShiftedRows,
    set_current_state_window,
    state_window_of,
)


class BlockTable(BlockRows):
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
        num_speculative_tokens: Draft tokens of a step; under context parallelism each has a row
            of the table.
        kv_cache_group: The group; ``None``: one row per token.
        max_row_tokens: Keep the last blocks of a request only, for so many tokens; ``None``: all.

    Attributes:
        max_num_blocks_per_req: Blocks of the longest row (not kernel blocks).
        physical_block_size: Rows of a block.
        block_size: Rows of a kernel block.
        blocks_per_phys_block: Kernel blocks of a block.
        block_table: ``[rows of the table, kernel blocks]``, int32, on host and device.
        slot_mapping: ``[tokens]``, on host and device.

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
        max_row_tokens: int | None = None,
    ) -> None:
        spec = None if kv_cache_group is None else kv_cache_group.kv_cache_spec
        # Inside the packed spec of a group's layers, where vllm-ascend does not look for it.
        self.compress_ratio = 1 if spec is None else compress_ratio(spec)
        self.max_num_reqs = max_num_reqs
        self.max_num_blocks_per_req = max(cdiv(max_num_blocks_per_req, self.compress_ratio), 1)
        shifted = None
        if max_row_tokens is not None:
            shifted = ShiftedRows(max_num_reqs, block_size)
            self.max_num_blocks_per_req = cdiv(max_row_tokens, block_size)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.kernel_sizes = kernel_sizes
        self.cp_kv_cache_interleave_size = cp_kv_cache_interleave_size
        (self.pcp_world_size, self.pcp_rank), (self.dcp_world_size, self.dcp_rank) = _cp_places()

        self.physical_block_size = block_size
        self.block_size = self.logical_block_size = _kernel_block_size(block_size, kernel_sizes)
        super().__init__(
            max_num_reqs * (1 + num_speculative_tokens if self._num_ranks > 1 else 1),
            max_num_reqs,
            self.max_num_blocks_per_req,
            block_size // self.block_size,
            torch.device(device),
            pin_memory,
            shifted,
        )
        self.slot_mapping = self._make_buffer(
            max_num_batched_tokens + 2 * self.pcp_world_size * max_num_reqs,
            # vLLM's slot kernel for the CPU writes int64; the NPU's operators read int32.
            dtype=torch.int64 if self.device.type == "cpu" else torch.int32,
        )

    @property
    def _num_ranks(self) -> int:
        return self.pcp_world_size * self.dcp_world_size

    @property
    def _rank(self) -> int:
        return self.pcp_rank * self.dcp_world_size + self.dcp_rank

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
        if self.compress_ratio > 1:
            self._compute_closing_slots(num_reqs, query_start_loc, positions)
            return
        if self.shifted is not None:
            counts = np.diff(query_start_loc[: num_reqs + 1].cpu().numpy())
            requests = np.repeat(np.arange(num_reqs), counts)
            self.compute_slot_mapping_draft(requests, positions[: len(requests)].cpu().numpy())
            return
        # Looked up anew: vLLM's CPU runner puts another one in the place of the Triton kernel.
        vllm_block_table._compute_slot_mapping_kernel[(num_reqs + 1,)](
            positions.shape[0],
            self.max_num_batched_tokens,
            query_start_loc,
            positions,
            self.block_table.gpu,
            self.block_table.gpu.stride(0),
            self.block_size,
            self.slot_mapping.gpu,
            TOTAL_CP_WORLD_SIZE=self._num_ranks,
            TOTAL_CP_RANK=self._rank,
            CP_KV_CACHE_INTERLEAVE_SIZE=self.cp_kv_cache_interleave_size,
            PAD_ID=PAD_SLOT_ID,
            BLOCK_SIZE=1024,
        )

    def _compute_closing_slots(
        self, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor
    ) -> None:
        requests = torch.repeat_interleave(
            torch.arange(num_reqs, device=positions.device),
            (query_start_loc[1 : num_reqs + 1] - query_start_loc[:num_reqs]).long(),
            output_size=len(positions),
        )
        rows = positions // self.compress_ratio
        blocks = self.block_table.gpu[requests, (rows // self.block_size).long()].long()
        slots = blocks * self.block_size + rows % self.block_size
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
        if self.shifted is not None:
            positions = positions - self.shifted.first_blocks[req_indices] * self.block_size
        num_ranks, interleave = self._num_ranks, self.cp_kv_cache_interleave_size
        across_ranks = self.block_size * num_ranks
        blocks = self.block_table.np[req_indices, positions // across_ranks]
        places = positions % across_ranks
        is_local = places // interleave % num_ranks == self._rank
        rows = places // (num_ranks * interleave) * interleave + places % interleave
        slots = np.where(is_local, blocks * self.block_size + rows, PAD_SLOT_ID)
        self.slot_mapping.np[: len(slots)] = slots
        if num_ranks == 1:  # else the runner uploads what its ranks have agreed on
            self.slot_mapping.copy_to_gpu(len(slots))


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
            ranks = _num_context_parallel_ranks()
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
        batch = (max_num_reqs, max_num_batched_tokens, torch.device(device), pin_memory)
        is_whole = _num_context_parallel_ranks() == 1
        window = state_window_of(groups, max_model_len, *batch) if is_whole else None
        self.state_window = window
        set_current_state_window(window)
        # Of the state tables' rows; all 0 where they begin at a request's first token.
        zeros = np.zeros(max_num_reqs, dtype=np.int32)
        self._first_tokens = window.first_tokens.np if window is not None else zeros
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
                self._max_row_tokens(group),
            )
            for block_size, sizes, num_blocks, group in zip(
                block_sizes, kernel_sizes, max_num_blocks, groups, strict=True
            )
        ]

    def _max_row_tokens(self, group: KVCacheGroupSpec | None) -> int | None:
        if self.state_window is None or group is None:
            return None
        return self.state_window.span_tokens if is_compressor_state(group.kv_cache_spec) else None

    def append_row(self, block_ids: tuple[list[int], ...], row_idx: int) -> None:
        """Append blocks to a request's row, of every group."""
        self._make_room(block_ids, row_idx)
        super().append_row(block_ids, row_idx)

    def add_row(self, block_ids: tuple[list[int], ...], row_idx: int) -> None:
        """Fill a request's row anew, of every group."""
        for table in self.block_tables:
            table.begin_row(row_idx)
        self._first_tokens[row_idx] = 0
        self.append_row(block_ids, row_idx)

    def clear_row(self, row_idx: int) -> None:
        """Empty a row, of every group."""
        super().clear_row(row_idx)
        self._first_tokens[row_idx] = 0

    def move_row(self, src: int, tgt: int) -> None:
        """Copy a row over another one, of every group, and empty it.

        The next request that gets the emptied row may have fewer blocks, and drafts of its first
        step reach behind them: what were left there would be blocks of the request that moved.
        """
        super().move_row(src, tgt)
        self._first_tokens[tgt] = self._first_tokens[src]
        if src != tgt:
            self.clear_row(src)

    def swap_row(self, src: int, tgt: int) -> None:
        """Exchange two rows, of every group."""
        super().swap_row(src, tgt)
        self._first_tokens[[src, tgt]] = self._first_tokens[[tgt, src]]

    def commit_block_table(self, num_reqs: int) -> None:
        """Bring the device's tables up to date for the first ``num_reqs`` rows."""
        super().commit_block_table(num_reqs)
        if self.state_window is not None:
            self.state_window.commit()

    def _make_room(self, block_ids: tuple[list[int], ...], row_idx: int) -> None:
        """Let the rows of all state tables begin later, alike, if one of them would overflow."""
        window = self.state_window
        if window is None:
            return
        shifted = [
            (table, table.shifted, len(ids))
            for table, ids in zip(self.block_tables, block_ids, strict=True)
            if table.shifted is not None
        ]
        end = max(rows.end_token(row_idx, num_new) for _, rows, num_new in shifted)
        first = window.first_token_for(row_idx, end)
        if first != self._first_tokens[row_idx]:
            self._first_tokens[row_idx] = first
            for table, _, _ in shifted:
                table.move_on(row_idx, first)

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


def _cp_places() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (ranks, own rank) of the prefill and of the decode context-parallel group."""
    try:
        pcp, dcp = get_pcp_group(), get_dcp_group()
    except AssertionError:  # outside of an engine there are no groups
        return (1, 0), (1, 0)
    return (pcp.world_size, pcp.rank_in_group), (dcp.world_size, dcp.rank_in_group)


def _num_context_parallel_ranks() -> int:
    (pcp_world_size, _), (dcp_world_size, _) = _cp_places()
    return pcp_world_size * dcp_world_size


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
