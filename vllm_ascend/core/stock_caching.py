# SPDX-License-Identifier: Apache-2.0
"""Caching with every switch unset: vLLM's own, over groups of any block sizes."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.cache_plan import CachePlan
from vllm_ascend.core.layout.groups import Group, Groups
from vllm_ascend.core.layout.units import GroupId
from vllm_ascend.core.lookup.successors import SuccessorHashes
from vllm_ascend.releases import running_release


class StockCaching:
    """What vLLM does, corrected where it reads rows of other tokens.

    vLLM counts a draft layer's last row as good for any continuation and gives a block of every hit
    up for it; here blocks know what followed them. And it frees windows as if the drafts of the
    step in flight were accepted.

    Attributes:
        allocation: vLLM's coordinator over the same managers.
        unwritten_block_ids: None: nothing is kept from hits, as in vLLM.
        withdraws_freed: Without effect: nothing is withdrawn, as in vLLM.
    """

    def __init__(
        self,
        vllms: HybridKVCacheCoordinator,
        groups: Groups,
        plan: CachePlan,
        successors: SuccessorHashes,
    ) -> None:
        self.allocation, self._groups, self._successors = vllms, groups, successors
        self._num_unconfirmed = plan.num_unconfirmed_tokens
        self.unwritten_block_ids: set[int] = set()
        self.withdraws_freed = False
        self.take_hit = vllms.allocate_new_computed_blocks
        self.get_num_common_prefix_blocks = vllms.get_num_common_prefix_blocks

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Enter the full blocks of a request's first ``num_computed_tokens`` tokens."""
        for group in self._groups.all:
            enter_full_blocks(group, request, num_computed_tokens, self._successors)

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Free the blocks that every window has left behind.

        Under async scheduling the count may include drafts of the step in flight. Should they be
        rejected, the next step starts that much earlier, and so does its window.
        Source: vllm-project/vllm#47728.
        """
        confirmed = max(total_computed_tokens - self._num_unconfirmed, 0)
        self.allocation.remove_skipped_blocks(request_id, confirmed)

    def free(self, request_id: str) -> None:
        """Free a request's blocks."""
        self._successors.forget(request_id)
        self.allocation.free(request_id)

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """Take a request's blocks from it; see vLLM's coordinator."""
        self._successors.forget(request_id)
        return self.allocation.pop_blocks_for_free(request_id)

    def nothing(self, *_: object) -> None:
        """Look-ups are not remembered, no block is copied, and nothing is taken back or counted."""

    look_up_starts = look_up_ends = withdraw_unwritten = new_step_starts = nothing
    take_block_copies = confirm_block_copies = take_stats = nothing

    def num_spares(self, group_id: GroupId, request_id: str) -> int:
        """There are no spare tails."""
        return 0


def enter_full_blocks(
    group: Group, request: Request, num_tokens: int, successors: SuccessorHashes
) -> Sequence[int]:
    """Enter what ``num_tokens`` tokens fill in one group; return the ordinals entered."""
    manager = group.manager
    first_new = manager.num_cached_block.get(request.request_id, 0)
    running_release().enter_all(manager, request, num_tokens)
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
