# SPDX-License-Identifier: Apache-2.0
"""A connector's scheduler half, whose loads and sends end after a few steps, or fail.

It needs nothing of the project's, so that an unpatched vLLM can be driven with it.
"""

from __future__ import annotations

import random
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from tests.e2e.connectors.worker_hooks import EmptyWorkerHooks


class TraceConnector(EmptyWorkerHooks, KVConnectorBase_V1, SupportsHMA):
    """Decides by a request's name and how often it was asked.

    Attributes:
        num_loads: Loads so far, those within a step included.
        num_failed: Loads that failed.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._share_of_failures: float = extra["failures"]
        self._asked: dict[str, int] = {}
        self._loads: dict[str, tuple[int, set[int]]] = {}
        self._sends: dict[str, int] = {}
        self.num_loads = self.num_failed = 0

    def _luck(self, request: Request) -> random.Random:
        return random.Random(f"{request.request_id} {self._asked.get(request.request_id, 0)}")

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        luck = self._luck(request)
        if luck.random() < 0.1:
            self._asked[request.request_id] = self._asked.get(request.request_id, 0) + 1
            return None, False
        is_async = luck.random() < 0.6
        brings = luck.randrange(request.num_tokens) - num_computed_tokens
        return (brings, is_async) if brings > 0 else (0, False)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        luck = self._luck(request)
        self._asked[request.request_id] = self._asked.get(request.request_id, 0) + 1
        if not num_external_tokens:
            return
        self.num_loads += 1
        luck.random()
        if luck.random() < 0.6:
            (*_, last) = blocks.get_block_ids()
            fails = luck.random() < self._share_of_failures
            self._loads[request.request_id] = luck.randrange(1, 5), set(last[-2:] if fails else ())

    def request_finished_all_groups(self, request, block_ids):
        is_sent = request.status == RequestStatus.FINISHED_LENGTH_CAPPED
        if is_sent and random.Random(request.request_id).random() < 0.3:
            self._sends[request.request_id] = 3
            return True, None
        return False, None

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def end_of_step(self) -> KVConnectorOutput:
        """Return what the workers would tell of the step that has run."""
        received = {name for name, (delay, _) in self._loads.items() if delay == 0}
        invalid = set().union(*(self._loads.pop(name)[1] for name in sorted(received)))
        self.num_failed += bool(invalid)
        self._loads = {name: (delay - 1, ids) for name, (delay, ids) in self._loads.items()}
        sent = {name for name, delay in self._sends.items() if delay == 0}
        self._sends = {name: d - 1 for name, d in self._sends.items() if name not in sent}
        return KVConnectorOutput(
            finished_sending=sent, finished_recving=received, invalid_block_ids=invalid
        )
