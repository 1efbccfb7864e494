# SPDX-License-Identifier: Apache-2.0
"""The manager of a compressor-state group whose tables have holes where nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.cache_plan import CachePlan
from vllm_ascend.core.kv_cache_interface import AscendSlidingWindowMLASpec
from vllm_ascend.core.layout.specs import is_compressor_state

RowsRead = Callable[[str, int, int, int], Sequence[int]]
"""(request id, first new ordinal, tokens of the main model, tokens with slots) -> the ordinals
of new blocks that will be read."""


def is_sparse_state(spec: KVCacheSpec, plan: CachePlan) -> bool:
    """Whether a group's tables may have holes: compressor state where the switch is on.

    Args:
        spec: Unpacked.
    """
    if plan.is_stock or not plan.config.sparse_state:
        return False
    # Only Ascend's kernels skip writes to the null block.
    is_ascend_state = isinstance(spec, AscendSlidingWindowMLASpec) and is_compressor_state(spec)
    # A connector may hand on any block of a table, also one that nobody here would have read.
    return is_ascend_state and not plan.facts.has_connector


class SparseStateManager(SlidingWindowManager):
    """A compressor-state group whose table holds null blocks where nobody will read.

    Attributes:
        rows_read: Says which new blocks will be read; set by the coordinator, which knows the
            boundaries. Without it every block is allocated.
    """

    rows_read: RowsRead | None = None

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """Return the blocks that ``num_tokens`` tokens still need; see vLLM's base class."""
        if self.rows_read is None:
            return super().get_num_blocks_to_allocate(
                request_id,
                num_tokens,
                new_computed_blocks,
                total_computed_tokens,
                num_tokens_main_model,
                apply_admission_cap,
            )
        held = len(self.req_to_blocks.get(request_id, ()))
        if request_id not in self.num_cached_block:
            skipped = self.get_num_skipped_tokens(total_computed_tokens) // self.block_size
            held = max(held + len(new_computed_blocks), skipped)
        idle = self._get_num_evictable_blocks(new_computed_blocks)
        if cdiv(num_tokens, self.block_size) <= held:
            return idle
        return len(self.rows_read(request_id, held, num_tokens_main_model, num_tokens)) + idle

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[KVCacheBlock]:
        """Extend the table to ``num_tokens`` tokens, with null blocks where nobody will read."""
        if self.rows_read is None:
            return super().allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
        blocks = self.req_to_blocks[request_id]
        held = len(blocks)
        num_new = cdiv(num_tokens, self.block_size) - held
        if num_new <= 0:
            return []
        read = self.rows_read(request_id, held, num_tokens_main_model, num_tokens)
        new_blocks = [self._null_block] * num_new
        for ordinal, block in zip(read, self.block_pool.get_new_blocks(len(read)), strict=True):
            new_blocks[ordinal - held] = block
        blocks.extend(new_blocks)
        return new_blocks
