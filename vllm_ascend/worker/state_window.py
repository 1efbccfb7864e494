# SPDX-License-Identifier: Apache-2.0
"""Rows of compressor-state tables that begin where a request reads, not at its first token.

A million tokens have 524,288 blocks of C4 state at block size 32, of which a step reads and writes
those of its own tokens and one window before them. So a row holds the last blocks only, and says at
which token it begins. The compressor kernels take a request's first position and its row: both
are told less by the same number of tokens. They use that position only modulo their ratio, in
differences, to find a row's column, and to know whether a window lies before it (vllm-ascend's
``csrc/attention/compressor``), so a multiple of the ratios that leaves two windows in front
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_cache_interface import KVCacheGroupSpec
from vllm.v1.utils import CpuGpuBuffer

from vllm_ascend.core.layout.dsv4_layout import C128_RATIO
from vllm_ascend.core.layout.specs import is_compressor_state
from vllm_ascend.deployment import is_over_checkout
from vllm_ascend.prefix_cache_config import load_config

# Where rows may begin: multiples of every ratio and of every state block.
_UNIT = C128_RATIO
# Tokens in front of a step's first: two windows of the longest, and one unit of rounding.
_TOKENS_BEFORE = 3 * _UNIT
# Tokens behind its last: drafts, of the step in flight as well, and a block's rest.
_TOKENS_BEHIND = 2 * _UNIT
# A row is moved on at most once in so many tokens.
_STRIDE = 2048


class StateWindow:
    """At which token the rows of all state tables begin, for every request of a batch.

    Args:
        max_num_reqs: Requests in a batch.
        max_num_batched_tokens: Tokens of one step.
        device: Where the tables are read.
        pin_memory: Pin the host's copy.

    Attributes:
        span_tokens: Tokens that a row covers at most.
        first_tokens: ``[max_num_reqs]``, int32, on host and device; 0 for rows without blocks.
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_num_batched_tokens: int,
        device: torch.device,
        pin_memory: bool,
    ) -> None:
        self._kept_tokens = _TOKENS_BEFORE + max_num_batched_tokens + _TOKENS_BEHIND
        self.span_tokens = -(-(self._kept_tokens + _STRIDE) // _UNIT) * _UNIT
        self.first_tokens = CpuGpuBuffer(
            max_num_reqs, dtype=torch.int32, device=device, pin_memory=pin_memory
        )

    def first_token_for(self, row: int, end_token: int) -> int:
        """Return where a row has to begin so that it reaches up to ``end_token``."""
        first = int(self.first_tokens.np[row])
        if end_token - first <= self.span_tokens:
            return first
        return (end_token - self._kept_tokens) // _UNIT * _UNIT

    def shift(self, start_pos: torch.Tensor, first_request: int) -> None:
        """Count the positions of consecutive requests from their rows' first tokens, in place.

        Args:
            start_pos: ``[requests]``, where each request's step begins, on the device.
            first_request: The first one's row.
        """
        rows = slice(first_request, first_request + len(start_pos))
        start_pos.sub_(self.first_tokens.gpu[rows].to(start_pos.dtype))

    def commit(self) -> None:
        """Tell the device."""
        self.first_tokens.copy_to_gpu()


class ShiftedRows:
    """What one state table knows of its rows: where they begin, and how far the request is."""

    def __init__(self, max_num_reqs: int, block_size: int) -> None:
        self.block_size = block_size
        self.first_blocks = np.zeros(max_num_reqs, dtype=np.int64)
        self.num_blocks = np.zeros(max_num_reqs, dtype=np.int64)

    def new_part(
        self, block_ids: Sequence[int] | np.ndarray, row: int
    ) -> Sequence[int] | np.ndarray:
        """Note blocks that are appended; return those that are not in front of the row."""
        in_front = max(int(self.first_blocks[row] - self.num_blocks[row]), 0)
        self.num_blocks[row] += len(block_ids)
        return block_ids[in_front:]

    def end_token(self, row: int, num_new_blocks: int) -> int:
        """Return the token behind a row's last block once blocks are appended."""
        return int(self.num_blocks[row] + num_new_blocks) * self.block_size


def state_window_of(
    groups: Sequence[KVCacheGroupSpec | None], max_model_len: int, *sizes: Any
) -> StateWindow | None:
    """Return the window of a batch's state rows; ``None``: they begin at their requests' starts.

    They may begin late only where vllm-ascend's metadata counts from there as well.

    Args:
        groups: One for each block table.
        max_model_len: Tokens of the longest request.
        *sizes: The arguments of :class:`StateWindow`.
    """
    has_state = any(group and is_compressor_state(group.kv_cache_spec) for group in groups)
    if not (has_state and is_over_checkout() and load_config().apply_dsv4_patch):
        return None
    window = StateWindow(*sizes)
    return window if window.span_tokens < max_model_len else None


_CURRENT: list[StateWindow] = []


def current_state_window() -> StateWindow | None:
    """Return the window of this worker's batch; ``None`` while its rows begin at token 0."""
    return _CURRENT[0] if _CURRENT else None


def set_current_state_window(window: StateWindow | None) -> None:
    """Make a batch's window this worker's."""
    _CURRENT[:] = [] if window is None else [window]
