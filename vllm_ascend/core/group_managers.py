# SPDX-License-Identifier: Apache-2.0
"""Managers of one KV cache group: compressed rows, and the retention of vLLM's own managers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from vllm.utils.math_utils import cdiv
from vllm.v1.core import kv_cache_coordinator as vllm_coordinator
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHashList, BlockHashListWithBlockSize, KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from vllm_ascend.core.layout.specs import (
    compress_ratio,
    is_compressed,
    tokens_per_block,
    unpack_uniform,
)
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.plan.vllm_terms import VllmTerms, terms_in_force
from vllm_ascend.core.policy.block_ranks import reachable_blocks
from vllm_ascend.core.policy.boundaries import contiguous_blocks_for_hit
from vllm_ascend.core.policy.units import GroupId
from vllm_ascend.core.retention.sparse_state import SparseStateManager


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
            _enter_blocks(self, request, num_cached_blocks, num_full_blocks, self.tokens_per_block)

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


def get_manager_for_kv_cache_spec(
    kv_cache_spec: KVCacheSpec,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None,
    *,
    sparse_state: bool = False,
    terms: VllmTerms | None = None,
    **kwargs,
) -> SingleTypeKVCacheManager:
    """Return the manager of a group, by what its spec *is* rather than by its exact class.

    A request is admitted only if its blocks fit, so the bound used then must be the bound of what
    it will ever hold; windowed and compressed groups hold less than a block per ``block_size``
    tokens. Tokens of a step and of the longest request bound what a windowed group holds. With
    ``sparse_state`` tables hold null blocks where nobody reads. Compressed specs that count tokens
    get vLLM's own. Raises ``KeyError`` if no manager is known for a spec's class or a base of it.
    """
    spec = unpack_uniform(kv_cache_spec)
    terms = terms or terms_in_force()
    kwargs = terms.manager_arguments(tokens_per_block(spec)) | kwargs
    step_tokens = kwargs.pop(terms.step_tokens, max_num_batched_tokens)
    if is_compressed(spec) and terms.counts_rows:
        if max_model_len is not None:
            ratio = compress_ratio(spec)
            max_rows, rows = max_model_len // ratio, tokens_per_block(spec) // ratio
            kwargs["max_admission_blocks_per_request"] = cdiv(max_rows, rows) + 1
        return CompressAttentionManager(spec, **kwargs)
    recycles = isinstance(spec, SlidingWindowSpec | ChunkedLocalAttentionSpec)
    if recycles and step_tokens is not None and max_model_len is not None:
        kwargs["max_admission_blocks_per_request"] = spec.max_admission_blocks_per_request(
            **{terms.step_tokens: step_tokens}, max_model_len=max_model_len
        )
    if sparse_state:
        return SparseStateManager(spec, **kwargs)
    manager_class = terms.manager_class(spec)
    if manager_class is None:
        raise KeyError(f"no KV cache manager for {type(spec).__name__}")
    return manager_class(spec, **kwargs)


def make_managers(
    groups: Sequence[KVCacheGroupSpec], plan: CachePlan, pool: BlockPool
) -> tuple[SingleTypeKVCacheManager, ...]:
    """Return the managers of all groups, in their order."""

    def make(group_id: GroupId, group: KVCacheGroupSpec) -> SingleTypeKVCacheManager:
        arguments = {
            "kv_cache_spec": group.kv_cache_spec,
            plan.terms.step_tokens: (plan.max_num_batched_tokens + plan.facts.num_in_flight_tokens),
            "max_model_len": plan.max_model_len,
            "block_pool": pool,
            "enable_caching": pool.enable_caching,
            "kv_cache_group_id": group_id,
            **plan.terms.manager_arguments(plan.alignment),
        }
        if plan.is_sparse(plan.specs[group_id]):
            return get_manager_for_kv_cache_spec(**arguments, sparse_state=True)
        # Looked up on its module: vLLM's own, patched or not.
        return vllm_coordinator.get_manager_for_kv_cache_spec(**arguments)

    return tuple(make(GroupId(group_id), group) for group_id, group in enumerate(groups))


# Methods for vLLM's own managers (see patch/engine/patch_single_type_kv_cache_manager.py).


def cache_reachable_blocks(
    self: SingleTypeKVCacheManager,
    request: Request,
    num_tokens: int,
    retention_interval: int | None,
    alignment_tokens: int,
) -> None:
    """Enter the blocks that ``num_tokens`` tokens fill and that can serve a hit.

    Args:
        num_tokens: Tokens computed or scheduled, those already cached included.
        retention_interval: ``None`` for every boundary, 0 for the replay boundary only, N for
            every N tokens as well.
        alignment_tokens: Hits are multiples of this.

    Source: vLLM 0.23.0 ``SingleTypeKVCacheManager.cache_blocks``.
    """
    num_cached_blocks = self.num_cached_block.get(request.request_id, 0)
    num_full_blocks = num_tokens // self.block_size
    if num_cached_blocks >= num_full_blocks:
        return
    block_mask = self.reachable_block_mask(
        start_block=num_cached_blocks,
        end_block=num_full_blocks,
        alignment_tokens=alignment_tokens,
        kv_cache_spec=self.kv_cache_spec,
        use_eagle=False,
        retention_interval=retention_interval,
        num_prompt_tokens=request.num_prompt_tokens,
    )
    _enter_blocks(self, request, num_cached_blocks, num_full_blocks, self.block_size, block_mask)


def _enter_blocks(
    manager: SingleTypeKVCacheManager,
    request: Request,
    start_block: int,
    end_block: int,
    block_tokens: int,
    block_mask: list[bool] | None = None,
) -> None:
    blocks, group_id = manager.req_to_blocks[request.request_id], manager.kv_cache_group_id
    manager.block_pool.cache_full_blocks(
        request, blocks, start_block, end_block, block_tokens, group_id, block_mask=block_mask
    )
    manager.num_cached_block[request.request_id] = end_block


def reachable_block_mask(
    cls: type[SingleTypeKVCacheManager],
    start_block: int,
    end_block: int,
    alignment_tokens: int | None,
    kv_cache_spec: KVCacheSpec,
    use_eagle: bool,
    retention_interval: int | None = None,
    num_prompt_tokens: int | None = None,
) -> list[bool] | None:
    """Return which blocks of ``[start_block, end_block)`` may serve a hit; ``None``: all."""
    return None  # full attention reads every block of a prefix


def sliding_window_reachable_block_mask(
    cls: type[SingleTypeKVCacheManager],
    start_block: int,
    end_block: int,
    alignment_tokens: int | None,
    kv_cache_spec: SlidingWindowSpec,
    use_eagle: bool,
    retention_interval: int | None = None,
    num_prompt_tokens: int | None = None,
) -> list[bool] | None:
    """Keep the window's tail before every kept boundary; see ``block_ranks.reachable_blocks``.

    Args:
        alignment_tokens: Boundaries are multiples of this; ``None`` masks nothing.
        use_eagle: Boundaries are found by one block more than the window (vLLM's EAGLE rule).
        retention_interval: See ``cache_reachable_blocks``.
        num_prompt_tokens: Length of the prompt, for the replay boundary.

    Source: vLLM 0.23.0 ``SlidingWindowManager.reachable_block_mask``.
    """
    if alignment_tokens is None:
        return None
    block_tokens, window = kv_cache_spec.block_size, kv_cache_spec.sliding_window
    assert alignment_tokens % block_tokens == 0
    return reachable_blocks(
        start_block,
        end_block,
        block_tokens=block_tokens,
        tail_length=contiguous_blocks_for_hit(window, block_tokens, peek_block=use_eagle),
        alignment=alignment_tokens,
        interval=retention_interval,
        num_prompt_tokens=num_prompt_tokens,
        peek_blocks=int(use_eagle),
    )


def sliding_window_contiguous_blocks_for_hit(
    cls: type[SingleTypeKVCacheManager], window_size: int, block_size: int, use_eagle: bool
) -> int:
    """Return the blocks in a row that a hit needs. Source: vLLM 0.23.0, the same name."""
    return contiguous_blocks_for_hit(window_size, block_size, peek_block=use_eagle)
