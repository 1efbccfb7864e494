# SPDX-License-Identifier: Apache-2.0
"""The real ``EngineCoreProc`` around an engine of the tests."""

from __future__ import annotations

import queue
from typing import Any

from vllm.v1.engine.core import EngineCoreProc, EngineShutdownState

from tests.e2e.core.engine import Engine


class _Executor:
    """What a pause asks of the workers: nothing of it is theirs here."""

    def collective_rpc(self, method: str) -> None:
        pass


class Core(EngineCoreProc):
    """vLLM's loop without its processes and queues."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.scheduler, self.vllm_config = engine, engine.scheduler, engine.vllm_config
        self.batch_queue: Any = engine._in_flight
        self.engines_running, self.has_coordinator = False, False
        self._idle_state_callbacks: list[Any] = []
        self.input_queue: Any = queue.Queue()
        self.output_queue: Any = queue.Queue()
        self.shutdown_state = EngineShutdownState.RUNNING
        self.ec_producer = None
        self.model_executor: Any = _Executor()

    def __del__(self) -> None:
        pass

    def reset_mm_cache(self) -> None:
        pass

    def reset_encoder_cache(self) -> None:
        pass

    def turn(self) -> bool:
        """One turn of ``run_busy_loop``; return whether there was work."""
        if not self.has_work():
            self._notify_idle_state_callbacks()
            return False
        return self.engine.step()
