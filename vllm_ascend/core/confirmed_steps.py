# SPDX-License-Identifier: Apache-2.0
"""What a step has loaded, or lost, is known when its output is back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Protocol

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.request import Request

from vllm_ascend.core.retention.ledger import Ledger
from vllm_ascend.core.retention.request_record import RequestRecord


class Caching(Protocol):
    """Who enters what has been loaded, and holds the sources of copies."""

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Enter what a request's first tokens fill."""

    def release_copies(self, record: RequestRecord) -> None:
        """The step that was told a request's copies has run."""


class ConfirmedSteps:
    """Enters what steps have loaded, and says which requests rest on what they have lost."""

    def __init__(
        self,
        ledger: Ledger,
        caching: Caching,
        managers: Sequence[SingleTypeKVCacheManager],
    ) -> None:
        self._ledger, self._caching, self._managers = ledger, caching, managers

    def has_run(self, output: SchedulerOutput, lost_block_ids: Set[int]) -> None:
        """The output of a step is back; enter what it has loaded.

        Args:
            output: What the coordinator's ``step_is_dispatched`` was given.
            lost_block_ids: Blocks that a connector could not load, without the null block.
        """
        self._ledger.preempted_and_lost = []
        for record in self._ledger.confirm(output):
            self._caching.release_copies(record)
            request = record.request
            if request is None:
                continue
            if self._ledger.records.get(request.request_id) is not record:  # ended or preempted
                is_lost = not record.loading_block_ids.isdisjoint(lost_block_ids)
                if is_lost and not request.is_finished():
                    self._ledger.preempted_and_lost.append(request)
                continue
            if record.is_loading and not self.is_affected(request.request_id, lost_block_ids):
                record.load_ends()
                self._caching.cache_blocks(request, record.num_noted_tokens)

    def is_affected(self, request_id: str, lost_block_ids: Set[int]) -> bool:
        """Whether a request rests on blocks that could not be loaded by the step confirmed last.

        Args:
            lost_block_ids: See :meth:`has_run`.
        """
        if not (lost_block_ids and self._ledger.took_part(request_id)):
            return False
        record = self._ledger.records.get(request_id)
        if record is not None and not record.loading_block_ids.isdisjoint(lost_block_ids):
            return True
        return any(block_id in lost_block_ids for block_id in self.block_ids(request_id))

    def block_ids(self, request_id: str) -> Iterator[int]:
        """Yield the ids of a request's blocks, group by group."""
        for manager in self._managers:
            for block in manager.req_to_blocks.get(request_id, ()):
                yield block.block_id
