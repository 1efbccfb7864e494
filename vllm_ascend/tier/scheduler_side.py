# SPDX-License-Identifier: Apache-2.0
"""The scheduler's half of the tier: what is loaded for a request, and what is stored of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Any, NamedTuple

from vllm.v1.request import Request

from vllm_ascend.core.connectors.connector_rules import Answer, look_up_limit
from vllm_ascend.core.policy.boundaries import align_down
from vllm_ascend.tier.layout import ROWS, TierLayout
from vllm_ascend.tier.look_up import StoredHit
from vllm_ascend.tier.memory_over_disk import MemoryOverDisk, NothingBelow
from vllm_ascend.tier.orders import Load, Orders, Report, Run, blocks_by_group
from vllm_ascend.tier.progress import Progress, Tables, rows_run, tail_segments
from vllm_ascend.tier.remote_look_up import RemoteLookUps, longest_stored
from vllm_ascend.tier.shared_reset import SharedReset
from vllm_ascend.tier.statistics import TierCounts
from vllm_ascend.tier.store_orders import Index, StoreOrders
from vllm_ascend.tier.store_thread import StoreThread

logger = logging.getLogger("vllm.vllm_ascend.tier")

_NOTHING: Answer = (0, False)
_NOT_YET: Answer = (None, False)
# After a load that took too long, or a store that did not answer, it is left alone for so long.
_PAUSE_S = 30.0


class _Promise(NamedTuple):
    """What a look-up has promised to a request.

    Attributes:
        num_local: Tokens that it has here.
        keys: What the hit loads; ``None``: not built yet.
    """

    hit: StoredHit
    num_local: int
    is_async: bool
    keys: list[bytes] | None


class TierScheduler:
    """Answers look-ups, and orders loads and stores.

    Attributes:
        counts: What was counted so far.
        note_junction: Told at which boundary a request left what is stored, in tokens.
    """

    def __init__(
        self,
        layout: TierLayout,
        index: Index,
        *,
        staging_bytes: int,
        async_above_bytes: int,
        num_parts: int,
        num_workers: int,
        load_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store nothing yet.

        Args:
            staging_bytes: What a step stores, or loads before it runs, must fit in.
            async_above_bytes: A request waits for larger loads while others run.
            num_parts: Workers that store a part of every object.
            num_workers: Workers that load.
            load_seconds: No call of a store on another machine is waited for longer.
        """
        self._layout, self._index, self._clock = layout, index, clock
        self._staging_bytes, self._async_above = staging_bytes, async_above_bytes
        self._num_parts, self._num_workers = num_parts, num_workers
        self.counts = TierCounts()
        self._stores = StoreOrders(layout, index, self.counts, staging_bytes, num_parts)
        self.note_junction: Callable[[Request, int], None] = lambda request, tokens: None
        self._live: dict[str, Progress] = {}
        self._hits: dict[str, _Promise] = {}
        self._failed: set[str] = set()
        self._paused_until = 0.0
        self._thread = StoreThread(load_seconds)
        self._look_ups: RemoteLookUps | None = None
        self._reset: SharedReset | None = None
        if index.is_remote:
            remote: Any = index  # it can do more
            self._look_ups = RemoteLookUps(layout, remote, self._thread, load_seconds, clock)
            self._reset = SharedReset(remote, self._thread, load_seconds)
        self._load_ids = count(1)
        self._loads: dict[int, tuple[Load, int]] = {}
        self._disk = index if isinstance(index, MemoryOverDisk) else NothingBelow()
        self._disk.count_in(self.counts)
        self._load_seconds = load_seconds
        self._waiting: list[tuple[Load, float]] = []  # for the disk, until then at most
        self._orders = Orders()
        self._sync_bytes = 0

    def read_tables(self, tables: Callable[[str], Tables]) -> None:
        """Say how to find a request's blocks, by group; before the first step."""
        self._stores.tables = tables

    def know_cache(self, coordinator: Any) -> None:
        """Take what the KV cache's coordinator knows of requests; before the first step."""
        ledger = coordinator.ledger

        def note(request: Request, junction: int) -> None:
            record = ledger.record(request.request_id)
            record.junction = max(record.junction, junction)

        def stale_tokens(request_id: str) -> list[int]:
            record = ledger.records.get(request_id)
            return [] if record is None else record.stale_tokens

        self.note_junction = note
        self._stores.stale_tokens = stale_tokens
        self._stores.cached_tail = coordinator.search.cached_tail

    def tell_found(self, note: Callable[[bytes, Request, int], None]) -> None:
        """Say who is told as well of what can be loaded; see ``StoreOrders.on_found``."""
        self._stores.on_found.append(note)

    # Look-up

    def look_up(self, request: Request, num_local: int) -> Answer:
        """Return how many tokens the tier brings behind local ones, and whether asynchronously."""
        self._hits.pop(request.request_id, None)
        if request.skip_reading_prefix_cache:  # it wants something of every token of its prompt
            return _NOTHING
        unit = self._layout.unit
        limit = look_up_limit(request.num_tokens, request.kv_transfer_params) // unit
        limit = min(limit, self._layout.num_named_units(len(request.block_hashes)))
        first = num_local // unit
        if limit <= first or request.request_id in self._failed or self._is_paused():
            return _NOTHING
        self._disk.settle()  # what other ranks have written
        try:
            hit = self._find(request, first, limit)
        except RuntimeError as error:
            self._pause(str(error))
            return _NOTHING
        if hit is None:
            return _NOT_YET
        num_tokens = hit.end * unit - num_local
        num_bytes = (hit.end - first) * self._layout.unit_bytes + self._layout.tail_bytes
        keys = None
        if self._disk.has_disk and hit.end > first:
            keys = self._layout.hit_keys(request.block_hashes, first, hit.end)
        # No step waits for a disk.
        is_async = self._is_async(num_bytes) or not self._disk.are_in_memory(keys or ())
        self._hits[request.request_id] = _Promise(hit, num_local, is_async, keys)
        return (num_tokens, is_async) if hit.end > first else _NOTHING

    def _find(self, request: Request, first: int, limit: int) -> StoredHit | None:
        """Return the longest hit; ``None``: it is not known yet.

        Raises:
            RuntimeError: The store does not answer, or not in time.
        """
        hashes, started = request.block_hashes, self._clock()
        if self._look_ups is not None:
            hit, seconds = self._look_ups.find(request.request_id, hashes, first, limit)
        else:
            hit = longest_stored(self._layout, self._index.contains, hashes, first, limit)
            seconds = self._clock() - started
        if seconds is not None:
            self.counts.look_up_seconds.append(seconds)
        return hit

    def _is_async(self, num_bytes: int) -> bool:
        if self._index.is_remote:
            return True  # no step waits for another machine
        return num_bytes > self._async_above or self._sync_bytes + num_bytes > self._staging_bytes

    def _is_paused(self) -> bool:
        """Whether the tier is left alone for now."""
        if self._clock() < self._paused_until:
            return True
        if self._thread.is_stuck():
            self._pause("a call of the store hangs")
            return True
        if self._reset is None:
            return False
        if why := self._reset.go_on(all_arrived=self._stores.is_idle()):
            self._pause(why)
        return self._reset.is_pending

    def _pause(self, why: str) -> None:
        self._paused_until = self._clock() + _PAUSE_S
        self.counts.pauses += 1
        if self._look_ups is not None:
            self._look_ups.forget_all()
        logger.warning("tier: %s; it is left alone for %.0f s", why, _PAUSE_S)

    # Loads

    def admitted(self, request: Request, tables: Tables, num_external: int) -> None:
        """A request was given its blocks; order what was promised to it."""
        layout = self._layout
        progress = self._live.setdefault(request.request_id, Progress(request))
        progress.request = request
        promise = self._hits.pop(request.request_id, _Promise(StoredHit(0, 0), 0, False, None))
        hit, num_local = promise.hit, promise.num_local
        if self._look_ups is not None:
            self._look_ups.forget(request.request_id)
            if not self._is_paused():
                num_here = (num_local or request.num_computed_tokens) // layout.unit
                self._look_ups.check(request.request_id, request.block_hashes, num_here)
        self._stores.begins(request)
        progress.next_unit = hit.rows_end if self._index.is_remote else 0
        progress.passed = max(request.num_computed_tokens, num_local + num_external)
        progress.load_id = progress.prompt = None
        progress.unnamed = []
        progress.junction = max(hit.rows_end - layout.tail_looks_ahead, 0) * layout.unit
        if progress.junction > num_local + num_external:
            self.note_junction(request, progress.junction)
        if layout.tails and progress.passed >= layout.unit:
            resumed_at = align_down(progress.passed, layout.unit)
            if key := layout.tail_key(request.block_hashes, resumed_at):
                progress.tails.append(key)
        if num_external:
            self._order_load(progress, tables, promise)

    def _order_load(self, progress: Progress, tables: Tables, promise: _Promise) -> None:
        layout, request = self._layout, progress.request
        (end, _), num_local, is_async, keys = promise
        first, boundary = num_local // layout.unit, end * layout.unit
        if keys is None:
            keys = layout.hit_keys(request.block_hashes, first, end)
        elif is_async:
            self._tell_found(request, keys, first)
        places, num_rows = self._index.use(keys), end - first
        rows = rows_run(layout, keys[:num_rows], places[:num_rows], first, tables, num_local)
        runs = [rows]
        if tail := tuple(keys[num_rows:]):
            segments = tail_segments(layout, boundary, tables, num_local)
            runs.append(Run(True, tail, (places[-1],), segments))
        load_id = next(self._load_ids)
        num_tokens = boundary - num_local
        written = frozenset(chain.from_iterable(blocks_by_group(runs).values()))
        load = Load(request.request_id, load_id, is_async, tuple(runs), written, num_tokens)
        self._loads[load_id] = load, 0
        if self._disk.are_read(keys):
            self._orders.loads.append(load)
        else:
            self._waiting.append((load, self._clock() + self._load_seconds))
        progress.load_id = load_id
        num_bytes = num_rows * layout.unit_bytes + layout.tail_bytes * bool(layout.tails)
        self._sync_bytes += 0 if is_async else num_bytes
        self.counts.loads += 1
        self.counts.hit_tokens += num_tokens
        self.counts.loaded_bytes += num_bytes * self._num_parts
        self._touch(progress, end)

    def _tell_found(self, request: Request, keys: Sequence[bytes], first: int) -> None:
        """Tell of a hit's objects that an earlier engine may have left: now their tokens are known.

        Args:
            first: Unit of the first rows.
        """
        unit = self._layout.unit
        end = first * unit
        for key in keys:
            if key[:1] == ROWS:
                end += unit
            if not self._disk.are_in_memory((key,)):  # a tail's end is that of its rows
                self._stores.tell_found(key, request, end)

    def _touch(self, progress: Progress, end: int) -> None:
        """Note that a prefix was used: its tails go first, then its last rows."""
        if self._index.is_remote:
            return
        hashes, used = progress.request.block_hashes, list(progress.tails)
        if progress.rolling is not None:
            used.append(progress.rolling)
        used += reversed(self._layout.row_keys(hashes, 0, end))
        self._index.touch(used)

    def orders(self, scheduled: dict[str, int]) -> Orders:
        """Return what the workers are to do in the step that was scheduled.

        Args:
            scheduled: Request id -> tokens of the step.
        """
        self._disk.settle()
        self._order_what_was_read()
        orders, self._orders, self._sync_bytes = self._orders, Orders(), 0
        self._store_again()
        orders.stores = self._stores.orders(scheduled, self._live, is_paused=self._is_paused())
        self._thread.step_ends()
        return orders

    def _order_what_was_read(self) -> None:
        """Order the loads that waited for the disk.

        One that has waited too long is ordered as well: its workers find that it cannot be used.
        """
        waiting, self._waiting = self._waiting, []
        for load, until in waiting:
            if self._disk.are_read(load.keys):
                self._orders.loads.append(load)
            elif self._clock() >= until:
                self._disk.late()
                self._orders.loads.append(load)
            else:
                self._waiting.append((load, until))

    def _store_again(self) -> None:
        """Let requests store what a shared store has lost of what they hit here."""
        for request_id, unit in (self._look_ups.take_lost() if self._look_ups else {}).items():
            if progress := self._live.get(request_id):
                progress.next_unit = min(progress.next_unit, unit)
                self._stores.begins(progress.request)

    # What the workers tell

    def reported(self, report: Report, lost_block_ids: set[int]) -> None:
        """Take in what workers have done, and which blocks could not be loaded."""
        for load_id in list(report.ended):
            self._load_ended(load_id, report.ended[load_id], lost_block_ids)
        for key in report.unusable:
            self._index.drop(key)
        for counts, is_stored in ((report.stored, True), (report.not_stored, False)):
            for key, number in counts.items():
                self._stores.part_written(key, number, is_stored=is_stored)
        if report.is_slow:
            self._pause("a load or store took too long, or failed")

    def _load_ended(self, load_id: int, num_workers: int, lost_block_ids: set[int]) -> None:
        load, num_ended = self._loads[load_id]
        if not load.block_ids.isdisjoint(lost_block_ids):
            if load.request_id in self._live:
                self._failed.add(load.request_id)
            # Workers of one load may fail in different steps.
            self.counts.failed_loads += self._stores.load_failed(load_id)
        self._loads[load_id] = load, num_ended + num_workers
        if num_ended + num_workers < self._num_workers:
            return
        del self._loads[load_id]
        self._stores.load_ended(load_id)
        self._index.release(load.keys)
        progress = self._live.get(load.request_id)
        if progress is not None and progress.load_id == load_id:
            progress.load_id = None

    def loading_block_ids(self) -> set[int]:
        """Return the blocks that loads under way write."""
        return set().union(*(load.block_ids for load, _ in self._loads.values()))

    # Requests and resets

    def ended(self, request: Request) -> None:
        """A request has ended: what it used stays longest, its first rows last of all."""
        progress = self._live.pop(request.request_id, None)
        self._hits.pop(request.request_id, None)
        self._failed.discard(request.request_id)
        if self._look_ups is not None:
            self._look_ups.forget(request.request_id)
        self._stores.ended(request)
        if progress is not None:
            self._touch(progress, progress.next_unit)

    def reset(self) -> None:
        """Forget everything that is stored.

        Other engines would find what arrives in a shared store behind it, so that is waited for, at
        most as long as a load may take. What takes longer is removed when it has arrived, and the
        store is left alone until then.
        """
        if self._reset is None or self._look_ups is None:
            self._index.clear()
            return
        self._look_ups.forget_all()
        on_their_way = self._stores.keys_under_way()
        if why := self._reset.begin(on_their_way, all_arrived=not on_their_way):
            self._pause(why)

    def close(self) -> None:
        """Leave a store that is shared, or a disk, if it does not hang."""
        if self._look_ups is not None:
            self._look_ups.forget_all()
            leave: Any = self._index
            self._thread.close(leave.close)
        self._disk.close(self._load_seconds)

    def is_idle(self) -> bool:
        """Whether no load and no store is under way. For tests."""
        return not self._loads and self._stores.is_idle()
