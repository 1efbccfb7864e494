# SPDX-License-Identifier: Apache-2.0
"""An engine with a tier whose rows are the oracle's tags: stored and loaded, they are proved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.config import KVTransferConfig

from tests.e2e.connectors.connected import ConnectedEngine
from vllm_ascend.tier.connector import GranuleTierConnector
from vllm_ascend.tier.objects import HEADER_BYTES, Bytes
from vllm_ascend.tier.orders import blocks_by_group
from vllm_ascend.tier.worker_side import TierWorker
from vllm_ascend_evaluation.oracle.connected_worker import ConnectedWorker
from vllm_ascend_evaluation.oracle.digests import LOST, Stamps


class OracleTierWorker(TierWorker):
    """Tells the oracle which blocks are loaded, when, and which loads fail.

    Attributes:
        shadow: The oracle's worker.
        waits_for_stores: A step ends when everything is stored, so that tests can rely on it.
    """

    shadow: ConnectedWorker
    waits_for_stores = True

    def start(self, orders: Any) -> None:
        for load in orders.loads:
            self.shadow.begin_load(load.request_id)
            for group_id, ids in blocks_by_group(load.runs).items():
                self.shadow.expect(load.request_id, group_id, ids, runs_now=not load.is_async)
        super().start(orders)

    def end(self) -> None:
        super().end()
        if self.waits_for_stores:
            self._writer.submit(int).result()

    def _end_load(self, loading: Any, now: float) -> None:
        super()._end_load(loading, now)
        self.shadow.has_loaded(loading.load.block_ids)

    def _fail(self, loading: Any, now: float) -> None:
        load = loading.load
        super()._fail(loading, now)
        for group_id, ids in blocks_by_group(load.runs).items():
            for block_id in ids:
                self.shadow.memory.mark(block_id, group_id, slice(0, None), LOST)
        if not load.is_async:
            self.shadow.lose(load.request_id)


class OracleTierConnector(GranuleTierConnector):
    """The tier's connector, whose worker tells the oracle.

    Its ``shadow`` is set by :class:`TierEngine`.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if self.worker_half is not None:
            self.worker_half.__class__ = OracleTierWorker

    def get_kv_connector_stats(self) -> None:
        """Leave the counts to the tests; vLLM 0.30.0 takes them in every step."""


class TierEngine(ConnectedEngine):
    """Drives a scheduler with a tier below; every step is verified."""

    def make_worker_connector(self) -> Any:
        """Return the worker's half, with the oracle's tags for KV cache."""
        # On a machine that stalls the scheduler waits for its store, unless a test wants it not to.
        self.tier._thread.grace_s = 300.0
        connector = super().make_worker_connector()
        self.worker_half(connector).shadow = self.worker
        memory = self.worker.memory
        caches = self.caches_of([memory.planes(group) for group in range(len(memory.rows))])
        connector.register_kv_caches(caches)
        return connector

    def caches_of(self, planes: Sequence[Sequence[Stamps]]) -> dict[str, Any]:
        """Return the tensors of a KV cache that holds stamps, of every group some planes."""
        caches: dict[str, Any] = {}
        groups = self.scheduler.kv_cache_config.kv_cache_groups
        for group, own in zip(groups, planes, strict=True):
            tensors = tuple(torch.from_numpy(plane.view("int64")) for plane in own)
            caches |= dict.fromkeys(group.layer_names, tensors)
        return caches

    @staticmethod
    def worker_half(connector: Any) -> TierWorker:
        """Return the worker's half of the tier in a connector."""
        return connector.worker_half

    def drain(self) -> None:
        """Let all requests end, and check that neither cache nor tier remembers one."""
        super().drain()
        half = self.tier
        remembered = {*half._live, *half._hits, *half._failed, *half._stores._due._latest}
        if half._look_ups is not None:
            remembered |= set(half._look_ups.names())
        assert not remembered, f"the tier remembers {sorted(remembered)} after the end"
        assert not (half.is_idle() and half._stores._failed_loads), "it remembers failed loads"

    def stores_lost_rows(self) -> bool:
        """Whether an object that backend `host` would give has a row that rests on a lost load."""
        index, memory = self.index, self.scheduler.connector._backend.memory
        header = np.zeros(HEADER_BYTES, np.uint8)
        stored = [key for key in index._places if index.contains([key])[0]]
        for place in map(index.place, stored):
            place = place[: len(place) // self.tier._num_parts]  # the first rank's
            memory.read(place, header)
            num_bytes = int.from_bytes(header[40:48].tobytes(), "little")
            row = np.zeros(HEADER_BYTES + num_bytes, np.uint8)
            memory.read(place, row)
            if holds_lost_rows(row[HEADER_BYTES:]):
                return True
        return False

    def close(self) -> None:
        """Leave the store."""
        self.worker.connector.shutdown()
        self.scheduler.connector.shutdown()

    @property
    def tier(self) -> Any:
        """The scheduler's half."""
        return self.scheduler.connector.scheduler_half

    @property
    def index(self) -> Any:
        """The backend's scheduler half."""
        return self.scheduler.connector.index


def holds_lost_rows(row: Bytes) -> bool:
    """Whether stamps of a lost load are among some bytes."""
    return bool((row[: len(row) // 8 * 8].view("int64") == LOST).any())


def transfer_config(**extra: Any) -> KVTransferConfig:
    """Configure the tier. On a machine that stalls no load is late, unless a test wants it."""
    defaults = {"staging_mib": 1, "least_gain_tokens": 0, "load_seconds": 300}
    return KVTransferConfig(
        kv_connector="OracleTierConnector",
        kv_connector_module_path=__name__,
        kv_role="kv_both",
        kv_connector_extra_config={**defaults, **extra},
    )
