# SPDX-License-Identifier: Apache-2.0
"""The scheduler, the oracle's worker and a KV connector between them, in one process.

What the connector loads is written into the shadow memory, and checked there like everything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from tests.e2e.core.engine import Engine, Oracle
from vllm_ascend.dry_run import scheduler as replay_scheduler
from vllm_ascend.dry_run.layouts import KVLayout
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend_evaluation.oracle import OracleOptions, ShadowWorker
from vllm_ascend_evaluation.oracle.request_state import RequestState
from vllm_ascend_evaluation.oracle.shadow_memory import Life

_PATIENCE_S = 300.0


class ConnectedWorker(ShadowWorker):
    """A worker that lets a connector load into its memory, as vLLM's model runners do."""

    def __init__(self, scheduler: Any, options: OracleOptions | None) -> None:
        super().__init__(scheduler, options)
        self.connector: Any = None
        self.sources_in_flight: Callable[[], set[int]] = set
        self._loaded: dict[str, dict[int, Life]] = {}
        self._loading: set[str] = set()

    @property
    def memory(self) -> Any:
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

    def has_loaded(self, block_ids: Iterable[int]) -> None:
        """A connector has written blocks: whoever reads them must look again."""
        for block_id in block_ids:
            self._memory.epoch[block_id] += 1

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Execute one step; see the base class."""
        for request_id in {*output.finished_req_ids, *getattr(output, "freed_request_ids", ())}:
            self._loaded.pop(request_id, None)
        result = super().execute(output)
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
        loaded = self._loaded.get(state.request_id, {})
        fresh = []
        for block_id in block_ids:
            life = loaded.get(block_id)
            if life is not None and self._memory.owner[block_id] is life:
                self._memory.owner[block_id] = state.life
            else:
                fresh.append(block_id)
        super()._give(state, group_id, fresh)


class ConnectedEngine(Engine):
    """Drives one scheduler that has a connector; every step is verified.

    Attributes:
        handed_over: request id -> the transfer parameters that it ended with.
    """

    worker: ConnectedWorker

    def __init__(
        self,
        layout: KVLayout,
        options: SchedulerOptions,
        transfer: KVTransferConfig,
        oracle: Oracle | None = None,
        **hf_config: Any,
    ) -> None:
        make_config = replay_scheduler._vllm_config

        def with_connector(*args: Any) -> Any:
            self.vllm_config = make_config(*args)
            self.vllm_config.kv_transfer_config = transfer
            for name, value in hf_config.items():
                setattr(self.vllm_config.model_config.hf_config, name, value)
            return self.vllm_config

        with mock.patch.object(replay_scheduler, "_vllm_config", with_connector):
            super().__init__(layout, options, oracle)
        self.worker.connector = self.make_worker_connector()
        self.worker.connector.worker = self.worker
        self.worker.sources_in_flight = self._sources_in_flight
        self._note_freed_requests()
        self._note_resets()
        self.handed_over: dict[str, dict[str, Any]] = {}
        finished = self.scheduler._connector_finished

        def note(request: Any) -> Any:
            delay, params = finished(request)
            if params is not None:
                self.handed_over[request.request_id] = params
            return delay, params

        self.scheduler._connector_finished = note  # type: ignore[method-assign]
        self._since = time.monotonic()

    def _sources_in_flight(self) -> set[int]:
        """Return the blocks that steps in flight copy from, for somebody who may read the copy."""
        return {
            copy.src_block_id
            for output, *_ in self._in_flight
            if not any(output is before for before in self._before_reset)
            for copy in output.kv_cache_block_copies or ()
        }

    def _note_resets(self) -> None:
        """Remember which steps are in flight at a reset: nobody reads what they copy."""
        self._before_reset: list[Any] = []
        manager = self.scheduler.kv_cache_manager
        reset = manager.reset_prefix_cache

        def note_reset() -> bool:
            is_reset = reset()
            if is_reset:
                self._before_reset = [output for output, *_ in self._in_flight]
            return is_reset

        manager.reset_prefix_cache = note_reset  # type: ignore[method-assign]

    def _note_freed_requests(self) -> None:
        """Say with every step whose blocks were freed before it: what they had loaded is gone."""
        scheduler, manager = self.scheduler, self.scheduler.kv_cache_manager
        schedule, free = scheduler.schedule, manager.free
        freed: set[str] = set()

        def note_free(request: Any) -> Any:
            freed.add(request.request_id)
            return free(request)

        def note_schedule(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            output.freed_request_ids = set(freed)
            freed.clear()
            return output

        manager.free = note_free  # type: ignore[method-assign]
        scheduler.schedule = note_schedule  # type: ignore[method-assign]

    def make_worker(self, oracle: OracleOptions | None) -> ConnectedWorker:
        """Return what executes the steps."""
        return ConnectedWorker(self.scheduler, oracle)

    def make_worker_connector(self) -> Any:
        """Return the worker's half of the connector."""
        return KVConnectorFactory.create_connector(
            self.vllm_config, KVConnectorRole.WORKER, self.scheduler.kv_cache_config
        )

    def step(self, between: Any = None) -> bool:
        """One turn; also while finished requests wait for their blocks to be handed over."""
        if super().step(between):
            return True
        if not any(request.is_finished() for request in self.scheduler.requests.values()):
            return False
        output = self.scheduler.schedule()
        self.scheduler.update_from_output(output, self.worker.execute(output))
        return True

    def _watch_progress(self, executed: bool) -> None:
        now = time.monotonic()
        if executed:
            self._since = now
        assert now - self._since < _PATIENCE_S, f"nothing is scheduled any more of {self.alive}"
