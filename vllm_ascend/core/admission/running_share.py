# SPDX-License-Identifier: Apache-2.0
"""How many run: where prompts are lost, requests are let in beside others up to a share of memory.

A prompt is lost that returns when too much of it has been given up. Then those that run hold half
of the memory at most, and the cache keeps the rest. Its share falls from there on, until the next
loss. Where nothing is lost, as many run as fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.request import Request, RequestStatus

from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.policy.admission import cached_share
from vllm_ascend.core.reporting.cache_stats import CacheStats


def owns_nothing(request: Request) -> bool:
    """Whether a request that waits holds no memory, was promised none and has never run."""
    handed = request.kv_transfer_params
    return (
        request.status == RequestStatus.WAITING
        and request.num_computed_tokens == 0
        and request.num_preemptions == 0
        # A prefill instance computes its prompts as others do, and hands them on.
        and (not handed or bool(handed.get("do_remote_decode")))
    )


class RunningShare:
    """The blocks that stay free for what is cached when one more request is let in.

    What running requests will take for the rest of their prompts counts as theirs. Nobody is held
    back where nothing runs, nor if he owns something or was promised it.
    """

    def __init__(
        self,
        pool: BlockPool,
        groups: Iterable[Group],
        requests: Mapping[str, Request],
        stats: CacheStats,
    ) -> None:
        """Read a scheduler's ``requests``, by name, and the lost prompts that are counted."""
        self._pool, self._requests, self._stats = pool, requests, stats
        self._running: Sequence[Request] = ()
        # What is cached has so many blocks since the prompt that was lost last, and before it
        # so many had been handed out.
        self._cached = self._num_lost = self._handed_out_before = 0
        # Of the other groups a prompt takes no more than it gives back.
        self._growing = [group for group in groups if group.is_downward_closed]

    @property
    def is_in_force(self) -> bool:
        """Whether a prompt was lost lately."""
        return self._cached > 0

    def step_starts(self, running: Sequence[Request]) -> None:
        """A step is being scheduled: who is let in joins ``running``."""
        self._running = running
        is_lost = self._stats.lost_prompts != self._num_lost
        if is_lost or self.is_in_force:
            queue: Any = self._pool.free_block_queue  # by rank, or nothing would be lost
            handed_out = sum(queue.num_handed_out)
            if is_lost:
                self._num_lost, self._handed_out_before = self._stats.lost_prompts, handed_out
            since = handed_out - self._handed_out_before
            self._cached = cached_share(self._pool.num_gpu_blocks, since)
            self._stats.reserved_blocks = self._cached

    def step_ends(self) -> None:
        """The step has been scheduled.

        A request that ends goes with its token ids where it ends, and not in the next step.
        """
        self._running = ()

    def blocks_to_leave(self, request_id: str, need: int) -> int:
        """Return how many blocks must stay free if this request takes ``need`` blocks now."""
        if not (self._running and self.is_in_force and owns_nothing(self._requests[request_id])):
            return 0
        kept = self.blocks_kept()
        self._stats.held_steps += need <= self._pool.get_num_free_blocks() < need + kept
        return kept

    def blocks_kept(self) -> int:
        """Return how many blocks are not for those that wait."""
        return self._cached + sum(map(self._yet_to_take, self._running))

    def _yet_to_take(self, request: Request) -> int:
        num_tokens = request.num_tokens
        if num_tokens - request.num_computed_tokens <= 1:  # it decodes
            return 0
        name = request.request_id
        return sum(
            max(cdiv(num_tokens, group.block_tokens) - len(group.manager.req_to_blocks[name]), 0)
            for group in self._growing
        )
