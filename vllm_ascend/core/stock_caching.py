# SPDX-License-Identifier: Apache-2.0
"""Caching with every switch unset: vLLM's own, over groups of any block sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.layout.groups import Group, Groups
from vllm_ascend.core.lookup.hit_search import Blocks, Hit
from vllm_ascend.core.lookup.successors import SuccessorHashes
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.plan.vllm_terms import VllmTerms
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.core.reporting.cache_stats import CacheUpdate
from vllm_ascend.core.retention.ledger import Ledger
from vllm_ascend.core.retention.request_record import RequestRecord


class StockCaching:
    """vLLM's own caching, corrected where it would read rows of other tokens.

    vLLM counts a draft layer's last row as good for any continuation and gives a block of every hit
    up for it; here blocks know what followed them. It frees windows as if the drafts of the step in
    flight were accepted. And it enters what a connector has yet to load.

    Attributes:
        allocation: vLLM's own methods for memory.
        withdraws_freed: Without effect: nothing is withdrawn, as in vLLM.
    """

    def __init__(
        self,
        coordinator: HybridKVCacheCoordinator,
        groups: Groups,
        plan: CachePlan,
        successors: SuccessorHashes,
        ledger: Ledger,
    ) -> None:
        self.allocation = VllmsAllocation(coordinator)
        self._groups, self._successors, self._ledger = groups, successors, ledger
        self._terms = plan.terms
        self._num_unconfirmed = plan.num_unconfirmed_tokens
        self.withdraws_freed = False

    # Look-up

    def look_up_starts(self, request: Request) -> None:
        """Remember nothing: there are no junctions."""

    def look_up_ends(self, request: Request, hit: Hit) -> None:
        """Remember nothing: there are no junctions."""

    # Memory

    def take_hit(self, request_id: str, blocks: Blocks, num_local: int, num_external: int) -> None:
        """Let a request in behind its hit; see vLLM's ``allocate_new_computed_blocks``."""
        self.allocation.take_hit(request_id, blocks, num_local, num_external)

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Return the blocks that all running requests share, per group."""
        return self.allocation.get_num_common_prefix_blocks(running_request_id)

    # Caching and freeing

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Enter the full blocks of a request's first ``num_computed_tokens`` tokens."""
        if self._ledger.has_connector:
            self._ledger.open(self._ledger.record(request.request_id))
            if self._ledger.awaits_load(request, num_computed_tokens):
                return
        record = self._ledger.records.get(request.request_id)
        for group in self._groups.all:
            end = num_computed_tokens
            if record is not None and group.is_eagle:
                end = min(end, record.end_before_stale(group))
            enter_full_blocks(group, request, end, self._successors, self._terms)

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Free the blocks that every window has left behind.

        Under async scheduling the count may include drafts of the step in flight. Should they be
        rejected, the next step starts that much earlier, and so does its window.
        Source: vllm-project/vllm#47728.
        """
        confirmed = max(total_computed_tokens - self._num_unconfirmed, 0)
        self.allocation.remove_skipped_blocks(request_id, confirmed)

    def withdraw_unwritten(self, request_id: str) -> None:
        """Withdraw nothing, as in vLLM."""

    def lose(self, request_id: str) -> None:
        """Enter nothing more of a request: it rests on blocks that could not be loaded."""
        self._ledger.record(request_id).is_loading = True

    def free(self, request_id: str) -> None:
        """Free a request's blocks."""
        self._forget(request_id)
        self.allocation.free(request_id)

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """Take a request's blocks from it; see vLLM's coordinator."""
        self._forget(request_id)
        return self.allocation.pop_blocks_for_free(request_id)

    def _forget(self, request_id: str) -> None:
        self._successors.forget(request_id)
        self._ledger.records.pop(request_id, None)

    def rank_of(self, request_id: str) -> Rank:
        """There are no ranks: everything is kept alike."""
        return Rank.KEPT

    def resume(self, request_id: str, rank: Rank) -> None:
        """Remember nothing of a request that was preempted, as in vLLM."""

    # Steps

    def new_step_starts(self) -> None:
        """A new step is started."""
        self._ledger.next_step()

    def take_block_copies(self) -> list[KVCacheBlockCopy] | None:
        """Hits end with whole blocks: nothing is copied."""
        return None

    def release_copies(self, record: RequestRecord) -> None:
        """Nothing is copied."""

    def take_stats(self) -> CacheUpdate | None:
        """Count nothing, as in vLLM."""
        return None


class VllmsAllocation:
    """The methods for memory of vLLM's own coordinator, called on ours."""

    def __init__(self, coordinator: HybridKVCacheCoordinator) -> None:
        self._coordinator = coordinator

    def get_num_blocks_to_allocate(self, *args: Any, **kwargs: Any) -> int:
        """Return the blocks that a request still needs."""
        return HybridKVCacheCoordinator.get_num_blocks_to_allocate(
            self._coordinator, *args, **kwargs
        )

    def take_hit(self, *args: Any) -> None:
        """Give a request its hit's blocks, and room for external tokens."""
        HybridKVCacheCoordinator.allocate_new_computed_blocks(self._coordinator, *args)

    def allocate_new_blocks(self, *args: Any) -> tuple[list[KVCacheBlock], ...]:
        """Make room for more tokens."""
        return HybridKVCacheCoordinator.allocate_new_blocks(self._coordinator, *args)

    def remove_skipped_blocks(self, request_id: str, num_tokens: int) -> None:
        """Free the blocks that every window has left behind."""
        HybridKVCacheCoordinator.remove_skipped_blocks(self._coordinator, request_id, num_tokens)

    def free(self, request_id: str) -> None:
        """Free a request's blocks."""
        HybridKVCacheCoordinator.free(self._coordinator, request_id)

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """Take a request's blocks from it."""
        return HybridKVCacheCoordinator.pop_blocks_for_free(self._coordinator, request_id)

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Return the blocks that all running requests share, per group."""
        return HybridKVCacheCoordinator.get_num_common_prefix_blocks(
            self._coordinator, running_request_id
        )


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
