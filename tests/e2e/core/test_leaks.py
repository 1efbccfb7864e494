# SPDX-License-Identifier: Apache-2.0
"""Requests leave nothing behind: after thousands of them every container is as long as it was.

The real scheduler serves random traffic with aborts, preemptions and resets, without a model and
without the oracle. Whenever all requests have ended and the cache was reset, what can be reached
from the scheduler is counted, and so is every object that Python's garbage collector knows.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from tests.e2e.core.census import census
from tests.e2e.core.configurations import Configuration, grid
from tests.e2e.core.engine import Engine
from tests.e2e.core.workload import Workload
from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS
from vllm_ascend.core.kv_cache_coordinator import RankedCoordinator
from vllm_ascend.core.ranked_caching import RankedCaching
from vllm_ascend.dry_run.worker import SamplingWorker
from vllm_ascend_evaluation.oracle import IntegrityError, OracleOptions

# Everything that can be on, and the other ways of keeping blocks.
_NUM_REQUESTS = {
    "dsv4-rows-async-mtp-pin-best": 20_000,
    "dsv4-rows-plain-best": 2_000,
    "gemma-plain-spare-0": 2_000,
    "dsv4-rows-mtp1-retention-unset": 2_000,
}
_CELLS = {str(cell): cell for cell in grid() if str(cell) in _NUM_REQUESTS}
# By block id: never more entries than blocks, but how many differs from time to time.
_BY_BLOCK = ".kv_cache_manager.coordinator.successors._by_block"
# Objects that come and go whatever is served, as in Python's own caches: a leak has thousands.
_NUM_PASSING_OBJECTS = 200

Switch = Callable[[Mapping[str, str]], None]


class UncheckedWorker(SamplingWorker):
    """A worker that knows nothing of contents: it has lost none."""

    def lost_request_ids(self) -> frozenset[str]:
        return frozenset()

    def check_index(self) -> None:
        """There is nothing to check."""


class UnverifiedEngine(Engine):
    """Drives a scheduler without the oracle, whose memory grows with what it has seen."""

    def make_worker(self, oracle: OracleOptions | None) -> UncheckedWorker:
        """Samples tokens, and reads no rows."""
        return UncheckedWorker(self.scheduler)


class Traffic:
    """Random traffic on one engine, a cell of the grid."""

    def __init__(self, cell: Configuration) -> None:
        self.engine = UnverifiedEngine(cell.layout, cell.options(1.0))
        # Many requests of short answers rather than a few of long ones.
        traffic = replace(cell.traffic, max_output_tokens=16, arrival=0.9)
        self._workload = Workload(self.engine, traffic, seed=0)

    def serve(self, num_requests: int) -> tuple[Counter[str], Counter[str]]:
        """Let so many requests come and all of them end.

        Returns:
            The census of the scheduler, and the objects in the process, by type.
        """
        target = self._workload.num_requests + num_requests
        while self._workload.num_requests < target:
            self._workload.turn()
        self.engine.drain()
        for told in (self.engine.requests, self.engine.outputs, self.engine.hits):
            told.clear()
        entries = census(self.engine.scheduler)
        assert entries.pop(_BY_BLOCK, 0) < entries[".kv_cache_manager.block_pool.blocks"]
        gc.collect()
        return entries, Counter(type(each).__qualname__ for each in gc.get_objects())


@pytest.mark.parametrize("name", _NUM_REQUESTS)
def test_nothing_is_left_of_requests(name: str, switch: Switch) -> None:
    cell = _CELLS[name]
    switch(cell.environment)
    traffic, num_requests = Traffic(cell), _NUM_REQUESTS[name]
    entries, objects = traffic.serve(num_requests // 10)
    later_entries, later_objects = traffic.serve(num_requests - num_requests // 10)
    assert later_entries == entries
    more, fewer = later_objects - objects, objects - later_objects
    assert more.total() < _NUM_PASSING_OBJECTS, more.most_common(5)
    assert fewer.total() < _NUM_PASSING_OBJECTS, fewer.most_common(5)
    assert traffic.engine.num_preemptions > 0


@WHERE_BLOCKS_COUNT_ROWS
def test_a_request_id_that_is_kept_is_found(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest leak: a string per request."""
    freed: list[str] = []
    free = RankedCoordinator.free

    def free_and_keep(self: RankedCoordinator, request_id: str) -> None:
        free(self, request_id)
        freed.append(request_id)

    cell = _CELLS["dsv4-rows-plain-best"]
    switch(cell.environment)
    traffic = Traffic(cell)
    monkeypatch.setattr(RankedCoordinator, "free", free_and_keep)
    coordinator = traffic.engine.manager.coordinator
    coordinator.freed = freed
    entries, _ = traffic.serve(50)
    num_before = len(freed)
    later_entries, _ = traffic.serve(50)
    assert later_entries - entries == {
        ".kv_cache_manager.coordinator.freed": len(freed) - num_before
    }


def remember_records(self: RankedCoordinator, request_id: str) -> None:
    RankedCaching.free(self, request_id)
    self.ledger.record(request_id)


def remember_successors(self: RankedCoordinator, request_id: str) -> None:
    pending = self.successors._pending.get(request_id)
    RankedCaching.free(self, request_id)
    if pending:
        self.successors._pending[request_id] = pending


@WHERE_BLOCKS_COUNT_ROWS
@pytest.mark.parametrize(
    ("name", "free", "told"),
    [
        ("dsv4-rows-plain-best", remember_records, "the ledger remembers"),
        ("dsv4-rows-async-mtp-pin-best", remember_successors, "the memory of successors remembers"),
    ],
)
def test_a_request_that_is_remembered_is_found_where_all_have_ended(
    name: str, free: Callable, told: str, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = _CELLS[name]
    switch(cell.environment)
    monkeypatch.setattr(RankedCoordinator, "free", free)
    with pytest.raises(IntegrityError, match=told):
        Traffic(cell).serve(50)
