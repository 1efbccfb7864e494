# SPDX-License-Identifier: Apache-2.0
"""The scheduler, the oracle's worker and a KV connector between them, in one process.

What the connector loads is written into the shadow memory, and checked there like everything else.
"""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from tests.e2e.core.engine import Engine, Oracle
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.dry_run import scheduler as replay_scheduler
from vllm_ascend.dry_run.layouts import KVLayout
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend_evaluation.oracle import OracleOptions
from vllm_ascend_evaluation.oracle.connected_worker import ConnectedWorker

_PATIENCE_S = 300.0


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
            self.change_config(self.vllm_config)
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

    def change_config(self, config: Any) -> None:
        """Set what the options have no word for."""

    def make_worker_connector(self) -> Any:
        """Return the worker's half of the connector."""
        return KVConnectorFactory.create_connector(
            self.vllm_config, KVConnectorRole.WORKER, self.scheduler.kv_cache_config
        )

    def drain(self) -> None:
        """Let all requests end, reset, and check that nothing is left.

        vLLM 0.20.2's own takes no step for requests that have ended and wait for a connector: their
        blocks are freed when another request comes. So it is made to.
        """
        self.run()
        is_ours = isinstance(self.manager.coordinator, AscendHybridKVCacheCoordinator)
        while not is_ours and any(r.is_finished() for r in self.scheduler.requests.values()):
            output = self.scheduler.schedule()
            self.scheduler.update_from_output(output, self.worker.execute(output))
            self._watch_progress(executed=False)
        super().drain()

    def _watch_progress(self, executed: bool) -> None:
        now = time.monotonic()
        if executed:
            self._since = now
        assert now - self._since < _PATIENCE_S, f"nothing is scheduled any more of {self.alive}"
