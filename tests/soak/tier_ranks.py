# SPDX-License-Identifier: Apache-2.0
"""The tier's workers of one engine: late, failing, and as many as tensor parallelism has ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from tests.e2e.tier.tier_engine import OracleTierWorker
from tests.soak.slow_store import FailingStore, LateCalls
from vllm_ascend.tier.orders import Load
from vllm_ascend_evaluation.oracle.connected_worker import ConnectedWorker
from vllm_ascend_evaluation.oracle.digests import LOST, Stamps

_OTHER_RANK = np.uint64(1 << 61)


class SoakTierWorker(OracleTierWorker):
    """Waits in steps, and gives loads up that take some.

    Attributes:
        is_first: It is the rank whose memory the oracle looks into.
        failures: Share of loads that are given up while they are late, per step.
        ended: Loads that have ended since somebody last took them, and whether they failed.
    """

    waits_for_stores = False
    is_first = True
    failures = 0.0

    def set_up(self, seed: str, *, late: float, failures: float) -> None:
        """Take what is late and what fails."""
        self._reader: Any = LateCalls(f"{seed} reads", late)
        self._writer: Any = LateCalls(f"{seed} writes", late)
        self._store: Any = FailingStore(self._store, f"{seed} store", failures)
        self.failures, self._random = failures, random.Random(f"{seed} given up")
        self.ended: list[tuple[Load, bool]] = []
        self._failing = False

    def be_well(self) -> None:
        """From now on nothing is late, and nothing fails."""
        self.failures = self._store.failures = 0.0
        self._reader.be_quick()
        self._writer.be_quick()

    def start(self, orders: Any) -> None:
        """Start a step; see the base class."""
        self._reader.step()
        self._writer.step()
        for loading in list(self._loads):
            if self._random.random() < self.failures / 4:
                self._give_up(loading, loading.started)
        if self.is_first:
            super().start(orders)
        else:
            super(OracleTierWorker, self).start(orders)

    def _wait(self) -> None:
        step = [loading for loading in self._loads if not loading.load.is_async]
        if self._random.random() < self.failures / 8:
            self._give_up(step[0], step[0].started)
            return
        self._reader.flush()
        super()._wait()

    def _fail(self, loading: Any, now: float) -> None:
        self._failing = True
        super()._fail(loading, now)
        self._failing = False

    def _end_load(self, loading: Any, now: float) -> None:
        super()._end_load(loading, now)
        self.ended.append((loading.load, self._failing))

    def check_idle(self) -> None:
        """Nothing is left of any load or store."""
        left = (self._loads, self._fetches, self._received, self._invalid, self._stores, self.ended)
        assert not any(left), f"a worker remembers {left} after the end"
        free = len(self._free_for_loads), len(self._free_for_stores)
        assert free == (2, 2), f"so many buffers are free after the end: {free}"


class Ranks:
    """All workers of an engine, as its scheduler hears of them.

    Rows of the first rank are the oracle's. Another rank holds a copy, or where ranks hold parts of
    their own, something that tells them apart. What it has loaded must be what the first one has.
    """

    def __init__(self, connectors: Sequence[Any], shadow: ConnectedWorker) -> None:
        """Register every rank's memory."""
        self._connectors, self._shadow = connectors, shadow
        self.workers: list[SoakTierWorker] = [c.worker_half for c in connectors]
        self._aggregator = KVOutputAggregator(len(connectors))
        self._told = KVConnectorOutput()
        is_replicated = connectors[0].layout.is_replicated
        self._mark = np.uint64(0) if is_replicated else _OTHER_RANK
        memory = shadow.memory
        first = [memory.planes(group_id) for group_id in range(len(memory.rows))]
        others = [[[p ^ self._mark for p in planes] for planes in first] for _ in connectors[1:]]
        self.planes: list[list[list[Stamps]]] = [first, *others]
        # Loads under way: the ranks that have ended it, and whether any of them failed.
        self._under_way: dict[int, tuple[Load, int, bool]] = {}

    def lose_memory(self) -> None:
        """No rank has its rows any more, so nobody may use what is being loaded."""
        for load, ranks, _ in list(self._under_way.values()):
            self._under_way[load.load_id] = load, ranks, True

    def bind_connector_metadata(self, orders: Any) -> None:
        """Take a step's orders."""
        for load in orders.loads:
            self._under_way[load.load_id] = load, 0, False
        for connector in self._connectors:
            connector.bind_connector_metadata(orders)

    def start_load_kv(self, forward_context: Any) -> None:
        """Start a step."""
        self._copy_to_others()
        for connector in self._connectors:
            connector.start_load_kv(forward_context)
        self._take_ended()

    def wait_for_save(self) -> None:
        """End a step."""
        self._copy_to_others()
        for connector in self._connectors:
            connector.wait_for_save()

    def get_finished(self, finished: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Return the requests that all ranks have loaded."""
        outputs: list[ModelRunnerOutput | None] = []
        for connector in self._connectors:
            sent, received = connector.get_finished(finished)
            told = KVConnectorOutput(
                finished_sending=sent,
                finished_recving=received,
                invalid_block_ids=connector.get_block_ids_with_load_errors(),
                kv_connector_worker_meta=connector.build_connector_worker_meta(),
            )
            outputs.append(ModelRunnerOutput([], {}, kv_connector_output=told))
        self._take_ended()
        result = self._aggregator.aggregate(outputs)
        assert result is not None and result.kv_connector_output is not None
        self._told = result.kv_connector_output
        return self._told.finished_sending, self._told.finished_recving

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that a rank could not load."""
        return self._told.invalid_block_ids

    def build_connector_worker_meta(self) -> Any:
        """Return what all ranks have done."""
        return self._told.kv_connector_worker_meta

    def clear_connector_metadata(self) -> None:
        """Forget the step's orders."""
        for connector in self._connectors:
            connector.clear_connector_metadata()

    def shutdown(self) -> None:
        """Leave the store."""
        for connector in self._connectors:
            connector.shutdown()

    def _copy_to_others(self) -> None:
        """Other ranks have computed what the first one has; loads under way are their own."""
        loading = {i for load, *_ in self._under_way.values() for i in load.block_ids}
        for planes in self.planes[1:]:
            for group, first in zip(planes, self.planes[0], strict=True):
                for plane, source in zip(group, first, strict=True):
                    kept = {i: plane[i].copy() for i in loading}
                    plane[:] = source ^ self._mark
                    for i, rows in kept.items():
                        plane[i] = rows

    def _take_ended(self) -> None:
        for worker in self.workers:
            for load, has_failed in worker.ended:
                _, ranks, failed_before = self._under_way[load.load_id]
                failed = failed_before or has_failed
                self._under_way[load.load_id] = load, ranks + 1, failed
                if ranks + 1 == len(self.workers):
                    del self._under_way[load.load_id]
                    self._has_ended(load, failed=failed)
            worker.ended.clear()

    def _has_ended(self, load: Load, *, failed: bool) -> None:
        for segment in (segment for run in load.runs for segment in run.segments):
            ids, places, moved = segment.places()
            ids, places = ids[moved], places[moved]
            first = self.planes[0][segment.group_id]
            if failed:  # another rank's rows are wrong, though the first one's may be right
                for plane in first:
                    plane[ids] = LOST
                continue
            for planes in self.planes[1:]:
                for plane, source in zip(planes[segment.group_id], first, strict=True):
                    same = plane[ids, places] == source[ids, places] ^ self._mark
                    assert same.all(), f"ranks have loaded different rows for {load.request_id}"
        if failed:
            self._shadow.has_loaded(load.block_ids)
