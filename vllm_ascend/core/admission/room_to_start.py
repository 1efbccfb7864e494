# SPDX-License-Identifier: Apache-2.0
"""Memory that loads must leave, so that requests which have loaded can start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from vllm.v1.request import Request

from vllm_ascend.core.layout.groups import Groups
from vllm_ascend.core.lookup.hit_search import Blocks
from vllm_ascend.core.plan.cache_plan import CachePlan


class Allocation(Protocol):
    """Who knows what a request needs: vLLM's coordinator, or ours."""

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Blocks,
        num_encoder_tokens: int,
        total_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """Return the blocks that a request still needs."""
        ...


def room_to_start(
    allocation: Allocation, loaded: Iterable[Request], groups: Groups, plan: CachePlan
) -> int:
    """Return the most blocks that any request still needs which holds what it has loaded.

    Loads hold memory for requests that do not run yet. Without room for any of them to start in,
    nothing would ever be scheduled again. Source: vllm-project/vllm#45388.
    """
    nothing: Blocks = tuple([] for _ in groups.all)
    most = 0
    for request in loaded:
        computed, in_all = request.num_computed_tokens, request.num_tokens
        first_step = min(in_all, computed + plan.max_num_batched_tokens)
        for num_tokens, is_capped in ((first_step, False), (in_all, True)):
            need = allocation.get_num_blocks_to_allocate(
                request_id=request.request_id,
                num_tokens=num_tokens,
                new_computed_blocks=nothing,
                num_encoder_tokens=0,
                total_computed_tokens=computed,
                num_tokens_main_model=num_tokens,
                apply_admission_cap=is_capped,
            )
            most = max(most, need)
    return most
