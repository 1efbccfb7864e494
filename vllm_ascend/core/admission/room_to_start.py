# SPDX-License-Identifier: Apache-2.0
"""Memory that is left to requests which have loaded, so that they can start."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.request import Request

from vllm_ascend.core.layout.groups import Blocks, Groups
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.retention.ledger import Ledger


class RoomToStart:
    """The blocks that those still need who hold what they have loaded.

    Nobody else is let in who would take them. Else many would load little, hold it while they wait
    for memory, and compute behind it what others have computed meanwhile: a request that has loaded
    is not looked up again. And if none of them had room left, nothing would ever be scheduled
    (vllm-project/vllm#45388). From 0.23.0 on vLLM has a load leave it, but lets loads in that
    could not go on behind it.

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
        # By request, and of all; None: nobody has asked in this step.
        self._needs: dict[str, int] | None = None
        self._total = 0

    def step_starts(self) -> None:
        """A new step is being scheduled: loads have arrived, and requests have gone."""
        self._needs = None

    def blocks(self) -> int:
        """Return how many blocks whoever is let in next must leave free."""
        changed = self._ledger.take_changes()
        if self._needs is None:
            self._needs, self._total = {}, 0
            changed = self._ledger.awaiting_start()
        for name in changed:
            self._total -= self._needs.pop(name, 0)
            if self._ledger.awaits_start(name):
                request = self._ledger.records[name].request
                if request is not None:
                    need = self._needs[name] = self._need(request)
                    self._total += need
        return self._total

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
