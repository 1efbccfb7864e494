# SPDX-License-Identifier: Apache-2.0
"""How many run: requests are let in beside others while all of them hold their share of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vllm.utils.math_utils import cdiv
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.request import Request, RequestStatus

from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.policy.admission import cached_share


def owns_nothing(request: Request) -> bool:
    """Whether a request that waits holds no memory, was promised none and has never run."""
    return (
        request.status == RequestStatus.WAITING
        and request.num_computed_tokens == 0
        and request.num_preemptions == 0
        and not request.kv_transfer_params
    )


class RunningShare:
    """The blocks that stay free for what is cached when one more request is let in.

    What running requests will take for the rest of their prompts counts as theirs. Nobody is held
    back where nothing runs, nor if he owns something or was promised it.
    """

    def __init__(
        self, pool: BlockPool, groups: Iterable[Group], requests: Mapping[str, Request]
    ) -> None:
        """Read a scheduler's ``requests``, by name."""
        self._pool, self._requests = pool, requests
        self._running: Sequence[Request] = ()
        # Of the other groups a prompt takes no more than it gives back.
        self._growing = [group for group in groups if group.is_downward_closed]

    def step_starts(self, running: Sequence[Request]) -> None:
        """A step is being scheduled: who is let in joins ``running``."""
        self._running = running

    def blocks_to_leave(self, request_id: str) -> int:
        """Return how many blocks must stay free if this request is let in now."""
        if not self._running or not owns_nothing(self._requests[request_id]):
            return 0
        return self.blocks_kept()

    def blocks_kept(self) -> int:
        """Return how many blocks are not for those that wait."""
        return cached_share(self._pool.num_gpu_blocks) + sum(map(self._yet_to_take, self._running))

    def _yet_to_take(self, request: Request) -> int:
        num_tokens = request.num_tokens
        if num_tokens - request.num_computed_tokens <= 1:  # it decodes
            return 0
        name = request.request_id
        return sum(
            max(cdiv(num_tokens, group.block_tokens) - len(group.manager.req_to_blocks[name]), 0)
            for group in self._growing
        )
