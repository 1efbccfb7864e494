# SPDX-License-Identifier: Apache-2.0
"""Memory that loads must leave, so that requests which have loaded can start."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from vllm.v1.request import Request

from vllm_ascend.core.layout.groups import Blocks, Groups
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.retention.ledger import Ledger
from vllm_ascend.core.retention.request_record import RequestRecord


class RoomToStart:
    """The most blocks that any request still needs which holds what it has loaded.

    Loads hold memory for requests that do not run yet. If none of those has room left to start,
    nothing would ever be scheduled again. Source: vllm-project/vllm#45388.

    What a request needs does not change while it waits, so a step counts it once, however many
    loads it lets in.
    """

    def __init__(
        self,
        blocks_needed: Callable[..., int],
        ledger: Ledger,
        groups: Groups,
        plan: CachePlan,
    ) -> None:
        """Nobody has loaded anything.

        Args:
            blocks_needed: Returns what a request still needs for itself, with the arguments of
                ``get_num_blocks_to_allocate`` of vLLM's coordinator.
        """
        self._blocks_needed, self._ledger = blocks_needed, ledger
        self._step_tokens = plan.max_num_batched_tokens
        self._nothing: Blocks = tuple([] for _ in groups.all)
        # The largest need first, as a heap; None: nobody has asked in this step.
        self._needs: list[tuple[int, int, RequestRecord]] | None = None

    def step_starts(self) -> None:
        """A new step is being scheduled: loads have arrived, and requests have gone."""
        self._needs = None

    def blocks(self) -> int:
        """Return how many blocks the next load must leave free."""
        started = self._ledger.take_started_loads()
        if self._needs is None:
            self._needs, started = [], self._ledger.awaiting_start()
        for record in started:
            if record.awaits_start and record.request is not None:
                need = self._need(record.request)
                heappush(self._needs, (-need, id(record), record))
        while self._needs and not self._needs[0][2].awaits_start:
            heappop(self._needs)  # it has started in this step
        return -self._needs[0][0] if self._needs else 0

    def _need(self, request: Request) -> int:
        """Return the blocks that a request needs for its first step, or under the cap for all."""
        computed, in_all = request.num_computed_tokens, request.num_tokens
        first_step = min(in_all, computed + self._step_tokens)
        return max(
            self._blocks_needed(
                request_id=request.request_id,
                num_tokens=num_tokens,
                new_computed_blocks=self._nothing,
                num_encoder_tokens=0,
                total_computed_tokens=computed,
                num_tokens_main_model=num_tokens,
                apply_admission_cap=is_capped,
            )
            for num_tokens, is_capped in ((first_step, False), (in_all, True))
        )
