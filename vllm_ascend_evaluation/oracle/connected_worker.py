# SPDX-License-Identifier: Apache-2.0
"""The oracle's worker with a KV connector: what is loaded is checked like everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from vllm_ascend_evaluation.oracle.digests import LOST
from vllm_ascend_evaluation.oracle.options import OracleOptions
from vllm_ascend_evaluation.oracle.request_state import RequestState
from vllm_ascend_evaluation.oracle.shadow_memory import Life, ShadowMemory
from vllm_ascend_evaluation.oracle.worker import ShadowWorker


class ConnectedWorker(ShadowWorker):
    """A worker that lets a connector load into its memory, as vLLM's model runners do.

    Attributes:
        zeroed: The blocks that the step zeroes.
        copied: The blocks that the step copies others into.
    """

    def __init__(self, scheduler: Any, options: OracleOptions | None) -> None:
        super().__init__(scheduler, options)
        self.connector: Any = None
        self.sources_in_flight: Callable[[], set[int]] = set
        self.zeroed: frozenset[int] = frozenset()
        self.copied: frozenset[int] = frozenset()
        self._loaded: dict[str, dict[int, Life]] = {}
        self._loading: set[str] = set()

    @property
    def memory(self) -> ShadowMemory:
        """What the connector reads and writes."""
        return self._memory

    def expect(
        self, request_id: str, group_id: int, block_ids: Iterable[int], *, runs_now: bool
    ) -> None:
        """A connector is about to write a request's blocks: from now on they are its own.

        It writes beside the steps, so a step that is not confirmed must not copy from them.

        Args:
            runs_now: The request runs in this step, and loads for it.
        """
        overtaken = self.sources_in_flight().intersection(block_ids)
        assert not overtaken, f"{request_id} is loaded into copy sources {sorted(overtaken)}"
        loaded = self._loaded.setdefault(request_id, {})
        for block_id in block_ids:
            life = self._requests[request_id].life if runs_now else Life(request_id)
            if runs_now and self._memory.owner[block_id] is life:
                continue
            self._memory.give(block_id, group_id, life)
            if not runs_now:
                loaded[block_id] = life

    def begin_load(self, request_id: str) -> None:
        """A request has new blocks that a connector may leave alone: of what was lost nothing is
        in them any more."""
        pool = self._scheduler.kv_cache_manager.block_pool
        for table in self._scheduler.kv_cache_manager.get_block_ids(request_id):
            for block_id in table:
                is_new = pool.blocks[block_id].block_hash is None
                if is_new and self._memory.holds(block_id, None, LOST):
                    self._memory.wipe([block_id])

    def has_loaded(self, block_ids: Iterable[int]) -> None:
        """A connector has written blocks: whoever reads them must look again."""
        for block_id in block_ids:
            self._memory.epoch[block_id] += 1

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Execute one step; see the base class."""
        for request_id in {*output.finished_req_ids, *getattr(output, "freed_request_ids", ())}:
            self._loaded.pop(request_id, None)
        result = super().execute(output)
        for request_id in output.num_scheduled_tokens:
            # It has its tables. What they leave out it has freed, and may be given for other rows.
            self._loaded.pop(request_id, None)
        self.connector.wait_for_save()
        sent, received = self.connector.get_finished(output.finished_req_ids)
        invalid = self.connector.get_block_ids_with_load_errors()
        for blocks in self._loaded.values():
            if invalid.intersection(blocks):
                blocks.clear()  # its request starts anew: whoever is given them finds nothing
        result.kv_connector_output = KVConnectorOutput(
            finished_sending=sent,
            finished_recving=received,
            invalid_block_ids=invalid,
            kv_connector_worker_meta=self.connector.build_connector_worker_meta(),
        )
        self.connector.clear_connector_metadata()
        return result

    def _update_requests(self, output: SchedulerOutput) -> None:
        # Behind the copies, before anything is computed.
        self.connector.bind_connector_metadata(output.kv_connector_metadata)
        self.zeroed = frozenset(output.new_block_ids_to_zero or ())
        copies = getattr(output, "kv_cache_block_copies", None) or ()
        self.copied = frozenset(dst_block_id for _, dst_block_id in copies)
        super()._update_requests(output)
        self.connector.start_load_kv(None)

    def _newcomers(self, output: SchedulerOutput) -> set[str]:
        # One that starts to wait for its load was looked up, although it does not run.
        before = self._loading
        self._loading = {
            request_id
            for request_id, request in self._scheduler.requests.items()
            if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        }
        return super()._newcomers(output) | (self._loading - before)

    def _replace_tables(self, state: RequestState, *args: Any) -> None:
        super()._replace_tables(state, *args)
        # Blocks that it is given again later hold nothing of it.
        self._loaded.pop(state.request_id, None)

    def _give(self, state: RequestState, group_id: int, block_ids: Any) -> None:
        memory, loaded = self._memory, self._loaded.get(state.request_id, {})
        fresh = []
        for block_id in block_ids:
            life = loaded.get(block_id)
            # What a window frees at once may be given for rows of another group.
            is_loaded = life is not None and memory.owner[block_id] is life
            if is_loaded and memory.group_of[block_id] == group_id:
                memory.owner[block_id] = state.life
            else:
                fresh.append(block_id)
        super()._give(state, group_id, fresh)
