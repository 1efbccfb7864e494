# SPDX-License-Identifier: Apache-2.0
"""Watches whose tokens are in which block, whatever the blocks' keys say."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler


class IsolationError(AssertionError):
    """A request was given what another tenant's tokens have entered."""


class TenantWatch:
    """Knows for every block whose it is, from the moment it is allocated until it is again.

    A block that a request was given anew belongs to the request's tenant; one that it was given as
    part of a hit has to belong to it already. The blocks that a copy is made of count as given.

    Attributes:
        shared: (tenant, blocks that a request of it was given and another one of it had filled).
    """

    def __init__(self, scheduler: Scheduler, tenant_of: Callable[[str], Hashable]) -> None:
        """Start watching.

        Args:
            tenant_of: request id -> tenant.
        """
        self._manager = scheduler.kv_cache_manager
        self._tenant_of = tenant_of
        self._tenants: dict[int, Hashable] = {}
        self._writers: dict[int, str] = {}
        self.shared = 0
        pool = self._manager.block_pool
        allocate = pool.get_new_blocks

        def get_new_blocks(num_blocks: int):
            blocks = allocate(num_blocks)
            for block in blocks:
                self._tenants.pop(block.block_id, None)
                self._writers.pop(block.block_id, None)
            return blocks

        pool.get_new_blocks = get_new_blocks  # type: ignore[method-assign]

    def check(self, output: SchedulerOutput) -> None:
        """Look at every block of every request that a step computes, and at its copies.

        Raises:
            IsolationError: One belongs to another tenant.
        """
        for source, destination in getattr(output, "kv_cache_block_copies", None) or ():
            holder = next(
                request_id
                for request_id in output.num_scheduled_tokens
                if destination in self._blocks(request_id)
            )
            self._claim(source, holder)
        for request_id in output.num_scheduled_tokens:
            for block_id in self._blocks(request_id):
                self._claim(block_id, request_id)

    def _blocks(self, request_id: str) -> set[int]:
        tables = self._manager.get_block_ids(request_id)
        return {block_id for table in tables for block_id in table if block_id}

    def _claim(self, block_id: int, request_id: str) -> None:
        tenant = self._tenant_of(request_id)
        owner = self._tenants.setdefault(block_id, tenant)
        if owner != tenant:
            raise IsolationError(
                f"{request_id} of {tenant} holds block {block_id}, which {owner} filled"
            )
        self.shared += self._writers.setdefault(block_id, request_id) != request_id
