# SPDX-License-Identifier: Apache-2.0
"""Managers of one KV cache group: which it gets, and the retention of vLLM's own managers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from vllm.v1.core import kv_cache_coordinator as vllm_coordinator
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.layout.specs import is_compressed, tokens_per_block, unpack_uniform
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.plan.vllm_terms import VllmTerms, terms_in_force
from vllm_ascend.core.policy.boundaries import contiguous_blocks_for_hit
from vllm_ascend.core.policy.tail_blocks import reachable_blocks
from vllm_ascend.core.policy.units import GroupId
from vllm_ascend.core.pool.successors import SuccessorHashes
from vllm_ascend.core.retention.sparse_state import SparseStateManager


def get_manager_for_kv_cache_spec(
    kv_cache_spec: KVCacheSpec,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None,
    *,
    sparse_state: bool = False,
    terms: VllmTerms | None = None,
    role: str | None = None,
    **kwargs,
) -> SingleTypeKVCacheManager:
    """Return the manager of a group, by what its spec *is* rather than by its exact class.

    A request is admitted only if its blocks fit, so the bound used then must be the bound of what
    it will ever hold; windowed and compressed groups hold less than a block per ``block_size``
    tokens. Tokens of a step and of the longest request bound what a windowed group holds. With
    ``sparse_state`` tables hold null blocks where nobody reads. Compressed specs that count tokens
    get vLLM's own; it is vLLM that knows of a group's ``role``. Raises ``KeyError`` if no manager
    is known for a spec's class or a base of it.
    """
    spec = unpack_uniform(kv_cache_spec)
    terms = terms or terms_in_force()
    kwargs = terms.manager_arguments(tokens_per_block(spec)) | kwargs
    step_tokens = kwargs.pop(terms.step_tokens, max_num_batched_tokens)
    if is_compressed(spec) and terms.counts_rows:
        return terms.manager_of_rows(spec, max_model_len, **kwargs)
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
    groups: Sequence[KVCacheGroupSpec],
    plan: CachePlan,
    pool: BlockPool,
    *,
    zeroes_new_blocks: bool = False,
) -> tuple[SingleTypeKVCacheManager, ...]:
    """Return the managers of all groups, in their order.

    Args:
        zeroes_new_blocks: See :meth:`VllmTerms.group_arguments
            <vllm_ascend.core.plan.vllm_terms.VllmTerms.group_arguments>`.
    """

    def make(group_id: GroupId, group: KVCacheGroupSpec) -> SingleTypeKVCacheManager:
        arguments = {
            "kv_cache_spec": group.kv_cache_spec,
            plan.terms.step_tokens: (plan.max_num_batched_tokens + plan.facts.num_in_flight_tokens),
            "max_model_len": plan.max_model_len,
            "block_pool": pool,
            "enable_caching": pool.enable_caching,
            "kv_cache_group_id": group_id,
            **plan.terms.manager_arguments(plan.alignment),
            **plan.terms.group_arguments(group, zeroes_new_blocks=zeroes_new_blocks),
        }
        if plan.is_sparse(plan.specs[group_id]):
            return get_manager_for_kv_cache_spec(**arguments, sparse_state=True)
        # Looked up on its module: vLLM's own, patched or not.
        return vllm_coordinator.get_manager_for_kv_cache_spec(**arguments)

    return tuple(make(GroupId(group_id), group) for group_id, group in enumerate(groups))


def enter_full_blocks(
    group: Group,
    request: Request,
    num_tokens: int,
    successors: SuccessorHashes,
    terms: VllmTerms,
) -> Sequence[int]:
    """Enter what ``num_tokens`` tokens fill in one group; return the ordinals entered."""
    manager = group.manager
    first_new = manager.num_cached_block.get(request.request_id, 0)
    terms.enter_all(manager, request, num_tokens)
    if group.is_eagle:
        successors.resolve_pending(group.id, request)
    end = manager.num_cached_block.get(request.request_id, 0)
    if first_new >= end:
        return ()
    blocks = manager.req_to_blocks[request.request_id]
    entered = [i for i in range(first_new, end) if blocks[i].block_hash is not None]
    if group.is_eagle:
        for i in entered:
            successors.remember(group.id, request, blocks[i], (i + 1) * group.block_tokens)
    return entered


@contextmanager
def unzeroed(
    managers: Sequence[SingleTypeKVCacheManager], group_ids: Collection[int]
) -> Iterator[None]:
    """Within, no new block of some groups is noted for workers to zero."""
    noted = {group_id: len(managers[group_id].new_block_ids) for group_id in group_ids}
    yield
    for group_id, num_noted in noted.items():
        del managers[group_id].new_block_ids[num_noted:]


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
    enter_blocks(self, request, num_cached_blocks, num_full_blocks, self.block_size, block_mask)


def enter_blocks(
    manager: SingleTypeKVCacheManager,
    request: Request,
    start_block: int,
    end_block: int,
    block_tokens: int,
    block_mask: list[bool] | None = None,
) -> None:
    """Enter the blocks ``[start_block, end_block)`` of a request, or those that a mask allows."""
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
    """Keep the window's tail before every kept boundary; see ``tail_blocks.reachable_blocks``.

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
