# SPDX-License-Identifier: Apache-2.0
"""A worker's half of the tier: moves rows between the KV cache and a store.

Everything that touches the KV cache happens on the worker's own thread and stream, in the order of
its steps. Two threads wait for the store, one for loads and one for what is stored.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol
from zlib import crc32

import torch
from vllm.v1.kv_cache_interface import KVCacheConfig

from vllm_ascend.tier.layout import TierLayout
from vllm_ascend.tier.objects import HEADER_BYTES, Bytes
from vllm_ascend.tier.orders import Load, Orders, Report, Run
from vllm_ascend.tier.row_views import row_views, signature
from vllm_ascend.tier.settings import check_staging
from vllm_ascend.tier.staging import Shapes, Staging, split_to_fit
from vllm_ascend.tier.statistics import TierCounts

logger = logging.getLogger("vllm.vllm_ascend.tier")

_POLL_S = 0.001
_IN_TURNS = 2  # one is filled while the other is emptied
NUM_BUFFERS = 2 * _IN_TURNS
"""Of a worker, for loads and for stores. Each is on the host and on the device."""


class Store(Protocol):
    """What a backend's worker half can do; see ``host_memory.HostStore``."""

    def attach(self, address: Any) -> None: ...
    def register(self, buffer: Bytes) -> None: ...
    def write(
        self, keys: Sequence[bytes], places: Any, objects: Sequence[Bytes], layout: bytes
    ) -> list[bool]: ...
    def read(
        self, keys: Sequence[bytes], places: Any, targets: Sequence[Bytes], layout: bytes
    ) -> list[str | None]: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class _Loading:
    """A load under way.

    Attributes:
        parts: What is still to be fetched, a buffer at a time.
        started: When it was ordered.
    """

    load: Load
    parts: deque[list[Run]]
    started: float


@dataclass(eq=False)
class _Fetch:
    """A buffer that is being filled."""

    loading: _Loading
    runs: list[Run]
    buffer: Staging
    future: Future[dict[bytes, str]] = field(default_factory=Future)


class TierWorker:
    """Executes the orders of every step.

    Attributes:
        counts: What was counted since somebody last took it.
    """

    def __init__(
        self,
        layout: TierLayout,
        store: Store,
        *,
        staging_bytes: int,
        load_seconds: float,
        rank: int,
        num_ranks: int,
    ) -> None:
        """Move nothing yet.

        Args:
            rank: This worker's among those that hold the model's parts side by side.
        """
        self._layout, self._store = layout, store
        self._staging_bytes, self._load_seconds = staging_bytes, load_seconds
        self._rank, self._num_ranks = rank, num_ranks
        self.counts = TierCounts()
        self._report = Report()
        self._loads: deque[_Loading] = deque()
        self._fetches: list[_Fetch] = []
        self._received: set[str] = set()
        self._invalid: set[int] = set()
        self._written: deque[tuple[list[bytes], list[bool], str]] = deque()
        self._reader = ThreadPoolExecutor(1, "tier-load")
        self._writer = ThreadPoolExecutor(1, "tier-store")
        self._stores: list[Run] = []
        self._error_before: BaseException | None = None

    def register(self, kv_caches: Mapping[str, Any], kv_cache_config: KVCacheConfig) -> None:
        """Take the tensors of the KV cache, and allocate the buffers.

        Raises:
            ValueError: The tensors do not fit the layout, or a buffer does not hold an object.
        """
        groups = (*self._layout.rows, *self._layout.tails)
        views = row_views(kv_caches, kv_cache_config, groups)
        self._shapes, self._signature = Shapes(self._layout, views), signature(views)
        for kind, most in ((False, self._layout.unit_bytes), (True, self._layout.tail_bytes)):
            if self._shapes.num_bytes[kind] > most + HEADER_BYTES:
                raise ValueError(
                    "GranuleTierConnector: the KV cache tensors of a worker have more bytes per "
                    f"object ({self._shapes.num_bytes[kind]:,}) than its layout says ({most:,})"
                )
        check_staging(self._staging_bytes / (1 << 20), max(self._shapes.num_bytes.values()))
        device = views[0].rows.device
        self._free_for_loads, self._free_for_stores = (
            deque(self._buffer(device) for _ in range(_IN_TURNS)) for _ in range(2)
        )

    def _buffer(self, device: torch.device) -> Staging:
        pin_memory = False
        if device.type != "cpu":
            from vllm.utils.platform_utils import is_pin_memory_available

            pin_memory = is_pin_memory_available()
        buffer = Staging(self._staging_bytes, device, pin_memory=pin_memory)
        self._store.register(buffer.host)
        return buffer

    # A step

    def start(self, orders: Orders) -> None:
        """Start a step: load what it waits for, behind zeroing and copies of blocks."""
        self._error_before = sys.exc_info()[1]
        self._store.attach(orders.memory)
        self._stores = orders.stores
        now = time.monotonic()
        for load in orders.loads:
            parts = deque(split_to_fit(self._shapes, load.runs, self._staging_bytes))
            self._loads.append(_Loading(load, parts, now))
        self._go_on()
        while any(not item.load.is_async for item in self._loads):
            self._wait()
            self._go_on()

    def end(self) -> None:
        """End a step: gather what it stores. A step that ended in an exception stores nothing."""
        runs = [part for run in self._stores for part in self._own_parts(run)]
        self._stores = []
        if not runs:
            return
        error = sys.exc_info()[1]
        failed = error is not None and error is not self._error_before
        if failed or not self._free_for_stores:
            keys = [key for run in runs for key in run.keys]
            self._tell_written(keys, [False] * len(keys), "failed_step" if failed else "buffers")
            return
        buffer = self._free_for_stores.popleft()
        keys, places, objects = buffer.objects(self._shapes, runs)
        event = buffer.gather(self._shapes, runs)
        self._writer.submit(self._write, buffer, event, keys, places, objects)

    def _own_parts(self, run: Run) -> list[Run]:
        """Return what this rank stores of a run: where all hold the same, each stores a share."""
        if not self._layout.is_replicated or self._num_ranks == 1:
            return [run]
        ordinals = range(len(run.keys))
        return run.chosen(
            [i for i in ordinals if crc32(run.keys[i]) % self._num_ranks == self._rank]
        )

    def _write(
        self, buffer: Staging, event: Any, keys: list[bytes], places: Any, objects: list[Bytes]
    ) -> None:
        """Store objects, on a thread of its own."""
        is_stored = [False] * len(keys)
        try:
            if event is not None:
                event.synchronize()
            mine = [self._own_place(place) for place in places]
            is_stored = self._store.write(keys, mine, objects, self._signature)
        except Exception as error:
            logger.warning("tier: nothing of a step was stored: %r", error)
        finally:
            self._free_for_stores.append(buffer)
            self._tell_written(keys, is_stored, "store")

    def _own_place(self, place: Any) -> Any:
        """Return where this rank's part of an object is."""
        if self._layout.is_replicated or not isinstance(place, bytes):  # another store's
            return place
        count = len(place) // self._num_ranks
        return place[self._rank * count : (self._rank + 1) * count]

    # Loads

    def _go_on(self) -> None:
        """Scatter what was fetched, and fetch what comes next, as far as there are buffers."""
        now = time.monotonic()
        for fetch in [fetch for fetch in self._fetches if fetch.future.done()]:
            self._fetches.remove(fetch)
            self._fetched(fetch, now)
        for loading in [item for item in self._loads if not item.parts]:
            if not any(fetch.loading is loading for fetch in self._fetches):
                self._end_load(loading, now)
        for loading in list(self._loads):
            if now - loading.started > self._load_seconds:
                self._give_up(loading, now)
        # Those that a step waits for come first.
        for loading in sorted(self._loads, key=lambda item: item.load.is_async):
            while loading.parts and self._free_for_loads:
                self._fetch(loading)

    def _fetch(self, loading: _Loading) -> None:
        buffer, runs = self._free_for_loads.popleft(), loading.parts.popleft()
        fetch = _Fetch(loading, runs, buffer)
        keys, places, targets = buffer.objects(self._shapes, runs)
        fetch.future = self._reader.submit(self._read, buffer, keys, places, targets)
        self._fetches.append(fetch)

    def _read(
        self, buffer: Staging, keys: list[bytes], places: Any, targets: list[Bytes]
    ) -> dict[bytes, str]:
        """Fetch objects, on a thread of its own; return those that are unusable, and why."""
        buffer.wait_until_read()
        mine = [self._own_place(place) for place in places]
        reasons = self._store.read(keys, mine, targets, self._signature)
        return {key: why for key, why in zip(keys, reasons, strict=True) if why is not None}

    def _fetched(self, fetch: _Fetch, now: float) -> None:
        loading = fetch.loading
        error = fetch.future.exception()
        unusable = {} if error else fetch.future.result()
        if error:
            logger.warning("tier: a load failed: %r", error)
            self._report.is_slow = True
        if loading in self._loads and not error and not unusable:
            fetch.buffer.scatter(self._shapes, fetch.runs)
        self._free_for_loads.append(fetch.buffer)
        if loading in self._loads and (error or unusable):
            self._report.unusable.update(unusable)
            self.counts.unusable.update(unusable.values() or ["error"])
            self._fail(loading, now)

    def _give_up(self, loading: _Loading, now: float) -> None:
        """A load takes too long: its buffer is free again when the store has answered."""
        logger.warning("tier: a load took longer than %.1f s", self._load_seconds)
        self.counts.unusable["late"] += 1
        self._report.is_slow = True
        self._fail(loading, now)

    def _fail(self, loading: _Loading, now: float) -> None:
        self._invalid |= loading.load.block_ids
        loading.parts.clear()
        self._end_load(loading, now)

    def _end_load(self, loading: _Loading, now: float) -> None:
        self._loads.remove(loading)
        load = loading.load
        self._report.ended[load.load_id] = 1
        self.counts.load_seconds.append(now - loading.started)
        if load.is_async:
            self._received.add(load.request_id)

    def _wait(self) -> None:
        """Wait until something was fetched that a step waits for, or its time is up."""
        started = min(item.started for item in self._loads if not item.load.is_async)
        left = started + self._load_seconds - time.monotonic()
        waited = [f.future for f in self._fetches if not f.loading.load.is_async]
        # Without any the buffers are those of loads that were given up.
        if waited and left > 0:
            wait(waited, timeout=left, return_when=FIRST_COMPLETED)
        else:
            time.sleep(_POLL_S)

    # What is told

    def finished(self) -> set[str]:
        """Return the requests whose asynchronous loads have ended since the last call."""
        self._go_on()
        received, self._received = self._received, set()
        return received

    def take_invalid(self) -> set[int]:
        """Return the blocks that could not be loaded since the last call."""
        invalid, self._invalid = self._invalid, set()
        return invalid

    def take_report(self) -> Report | None:
        """Return what was done since the last call; ``None`` if nothing was."""
        while self._written:
            keys, is_stored, why_not = self._written.popleft()
            if failed := is_stored.count(False):
                self.counts.not_stored[why_not] += failed
            for key, ok in zip(keys, is_stored, strict=True):
                counts = self._report.stored if ok else self._report.not_stored
                counts[key] = counts.get(key, 0) + 1
        report, self._report = self._report, Report()
        return None if report == Report() else report

    def _tell_written(self, keys: list[bytes], is_stored: list[bool], why_not: str) -> None:
        """Note for the next report what became of objects."""
        self._written.append((keys, is_stored, why_not))

    def close(self) -> None:
        """Let go of everything; what is under way ends by itself."""
        for executor in (self._reader, self._writer):
            executor.shutdown(wait=False, cancel_futures=True)
        self._store.close()
