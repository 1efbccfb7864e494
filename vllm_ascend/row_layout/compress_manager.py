# SPDX-License-Identifier: Apache-2.0
"""The manager of a group whose blocks count compressed rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHashList, BlockHashListWithBlockSize, KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import KVCacheSpec, MLAAttentionSpec
from vllm.v1.request import Request

from vllm_ascend.core.group_managers import enter_blocks
from vllm_ascend.core.layout.specs import compress_ratio, tokens_per_block


class CompressAttentionManager(FullAttentionManager):
    """Blocks of rows that each stand for ``compress_ratio`` tokens.

    vLLM asks in tokens. A block is needed once its first *row* exists, and it is full, and named
    by the hashes of exactly its tokens, once ``tokens_per_block`` tokens are computed.

    Attributes:
        block_size: Stored rows per block, under either storage semantics.
        compress_ratio: Tokens per row.
        tokens_per_block: ``block_size * compress_ratio``.
    """

    def __init__(self, kv_cache_spec: MLAAttentionSpec, block_pool: BlockPool, **kwargs) -> None:
        super().__init__(kv_cache_spec, block_pool, **kwargs)
        self.compress_ratio = compress_ratio(kv_cache_spec)
        self.tokens_per_block = tokens_per_block(kv_cache_spec)
        self.block_size = self.tokens_per_block // self.compress_ratio

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
        return super().get_num_blocks_to_allocate(
            request_id,
            num_tokens // self.compress_ratio,
            new_computed_blocks,
            total_computed_tokens // self.compress_ratio,
            num_tokens_main_model // self.compress_ratio,
            apply_admission_cap,
        )

    def allocate_new_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[KVCacheBlock],
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        """Take the hit's blocks and make room for external tokens; see vLLM's base class."""
        total_tokens = num_local_computed_tokens + num_external_computed_tokens
        local_rows = num_local_computed_tokens // self.compress_ratio
        total_rows = total_tokens // self.compress_ratio
        super().allocate_new_computed_blocks(
            request_id, new_computed_blocks, local_rows, total_rows - local_rows
        )

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[KVCacheBlock]:
        """Make room for the rows of ``num_tokens`` tokens; see vLLM's base class."""
        return super().allocate_new_blocks(
            request_id,
            num_tokens // self.compress_ratio,
            num_tokens_main_model // self.compress_ratio,
        )

    def cache_blocks(
        self,
        request: Request,
        num_tokens: int,
        retention_interval: int | None = None,
        alignment_tokens: int | None = None,
    ) -> None:
        """Enter the blocks that ``num_tokens`` tokens fill; retention does not thin them out."""
        num_cached_blocks = self.num_cached_block.get(request.request_id, 0)
        num_full_blocks = num_tokens // self.tokens_per_block
        if num_cached_blocks < num_full_blocks:
            enter_blocks(self, request, num_cached_blocks, num_full_blocks, self.tokens_per_block)

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: BlockHashList,
        max_length: int,
        kv_cache_group_ids: list[int],
        block_pool: BlockPool,
        kv_cache_spec: KVCacheSpec,
        use_eagle: bool = False,
        alignment_tokens: int = 1,
        dcp_world_size: int = 1,
        pcp_world_size: int = 1,
        *,
        drop_eagle_block: bool = False,
    ) -> tuple[list[KVCacheBlock], ...]:
        """Return the longest cached run of blocks from the start, per group; see vLLM's base class.

        There is one hash per ``kv_cache_spec.block_size`` tokens. ``use_eagle``, which later
        releases call ``drop_eagle_block``: the last block is given up.
        """
        ranks = dcp_world_size * pcp_world_size
        block_tokens = tokens_per_block(kv_cache_spec) * ranks
        hash_tokens = kv_cache_spec.block_size * ranks
        hashes = block_hashes
        if hash_tokens != block_tokens:  # else it may be text, which vLLM's list cannot join
            hashes = BlockHashListWithBlockSize(block_hashes, hash_tokens, block_tokens)
        rows: list[list[KVCacheBlock]] = []
        for block_hash in itertools.islice(hashes, max_length // block_tokens):
            cached = block_pool.get_cached_block(block_hash, kv_cache_group_ids)
            if cached is None:
                break
            rows.append(cached)
        if (use_eagle or drop_eagle_block) and rows:
            rows.pop()
        while len(rows) * block_tokens % alignment_tokens:
            rows.pop()
        return tuple([row[group] for row in rows] for group in range(len(kv_cache_group_ids)))


def make_manager(
    spec: MLAAttentionSpec, max_model_len: int | None, **arguments: Any
) -> CompressAttentionManager:
    """Return the manager of a group; see :meth:`VllmTerms.manager_of_rows
    <vllm_ascend.core.plan.vllm_terms.VllmTerms.manager_of_rows>`.
    """
    if max_model_len is not None:
        ratio = compress_ratio(spec)
        max_rows, rows = max_model_len // ratio, tokens_per_block(spec) // ratio
        arguments["max_admission_blocks_per_request"] = cdiv(max_rows, rows) + 1
    return CompressAttentionManager(spec, **arguments)
