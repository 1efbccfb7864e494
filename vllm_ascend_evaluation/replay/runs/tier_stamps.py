# SPDX-License-Identifier: Apache-2.0
"""A tier that holds the oracle's stamps in place of bytes, so that a replay can verify it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_ascend.tier.host_memory import Place, pages_in
from vllm_ascend.tier.memory_over_disk import MemoryOverDisk
from vllm_ascend.tier.orders import Load, Orders, Rows, Run, Segment, blocks_by_group
from vllm_ascend_evaluation.oracle import OracleOptions
from vllm_ascend_evaluation.oracle.connected_worker import ConnectedWorker
from vllm_ascend_evaluation.oracle.digests import LOST, Stamps
from vllm_ascend_evaluation.replay.runs.disk import DiskOfRank, cannot_be_loaded


class StampedTierWorker(ConnectedWorker):
    """The oracle's worker, which executes the tier's orders with stamps.

    An object is what was last written to its pages, whatever its name.
    """

    def __init__(self, scheduler: Scheduler, options: OracleOptions) -> None:
        super().__init__(scheduler, options)
        self.connector = self
        self._orders = Orders()
        self._pages: dict[int, list[Stamps]] = {}
        self._invalid: set[int] = set()
        self._index = scheduler.connector.index
        if isinstance(self._index, MemoryOverDisk):
            work = self._index.disk.work
            assert isinstance(work, DiskOfRank), "replays model their disk"
            work.pages = self

    # The part of a connector that ``ConnectedWorker`` calls.

    def bind_connector_metadata(self, orders: Orders) -> None:
        """Take a step's orders."""
        self._orders = orders

    def clear_connector_metadata(self) -> None:
        """Forget the step's orders."""
        self._orders = Orders()

    def start_load_kv(self, _: Any) -> None:
        """Load what the step is to load, behind zeroing and copies of blocks."""
        for load in self._orders.loads:
            for group_id, ids in blocks_by_group(load.runs).items():
                self.expect(load.request_id, group_id, ids, runs_now=not load.is_async)
            if isinstance(self._index, MemoryOverDisk) and cannot_be_loaded(load, self._index):
                self._fail(load)
                continue
            for place, segments in _objects(load.runs):
                stored = iter(self.contents(place))
                for plane, blocks, rows, moved in self._rows(segments):
                    stamps = next(stored, None)
                    plane[blocks[moved], rows[moved]] = LOST if stamps is None else stamps[moved]
            self.has_loaded(load.block_ids)

    def _fail(self, load: Load) -> None:
        for group_id, ids in blocks_by_group(load.runs).items():
            for block_id in ids:
                self.memory.mark(block_id, group_id, slice(0, None), LOST)
        self._invalid |= load.block_ids
        self.has_loaded(load.block_ids)
        if not load.is_async:
            self.lose(load.request_id)

    def wait_for_save(self) -> None:
        """Store what the step is to store."""
        for place, segments in _objects(self._orders.stores):
            stamps = [
                np.where(moved, plane[blocks, rows], np.uint64(LOST))
                for plane, blocks, rows, moved in self._rows(segments)
            ]
            self._pages |= dict.fromkeys(pages_in(place), stamps)

    def get_finished(self, _: set[str]) -> tuple[None, None]:
        """Leave it to the replay to tell what was done, as below."""
        return None, None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks of loads that failed."""
        invalid, self._invalid = self._invalid, set()
        return invalid

    def build_connector_worker_meta(self) -> None:
        """Leave it to the replay to tell what was done."""

    def contents(self, place: Place) -> list[Stamps]:
        """Return what an object's pages hold; nothing if another has got one of them."""
        objects = [self._pages.get(page) for page in pages_in(place)]
        first = objects[0]
        return first if first is not None and all(o is first for o in objects) else []

    def fill(self, place: Place, contents: list[Stamps]) -> None:
        """Put what an object holds into its pages."""
        self._pages |= dict.fromkeys(pages_in(place), contents)

    def _rows(self, segments: tuple[Segment, ...]) -> Iterator[tuple[Stamps, Rows, Rows, Any]]:
        """Return planes of the shadow memory, the rows of an object in each, and which move."""
        for segment in segments:
            for plane in self.memory.planes(segment.group_id):
                yield plane, *segment.places()


def _objects(runs: Iterable[Run]) -> Iterator[tuple[Place, tuple[Segment, ...]]]:
    """Return place and rows of every object."""
    for run in runs:
        for ordinal in range(len(run.keys)):
            part = run.part(ordinal, ordinal + 1)
            yield part.places[0], part.segments
