# SPDX-License-Identifier: Apache-2.0
"""What a step stores: rows and tails that the tier lacks, as much as a buffer holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vllm.v1.request import Request

from vllm_ascend.core.pool.block_pool_methods import NULL_BLOCK_ID
from vllm_ascend.tier.layout import ROWS, TierLayout
from vllm_ascend.tier.objects import HEADER_BYTES
from vllm_ascend.tier.orders import Run
from vllm_ascend.tier.progress import Progress, Tables, holds_tail, rows_run, tail_run
from vllm_ascend.tier.statistics import TierCounts
from vllm_ascend.tier.tail_choice import KEPT, MARGINAL, TailChoice


class Index(Protocol):
    """What a backend's scheduler half can do; see ``host_memory.HostIndex``."""

    is_remote: bool

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]: ...
    def is_known(self, key: bytes) -> bool: ...
    def reserve(self, key: bytes, num_bytes: int, num_parts: int, rank: int) -> Any: ...
    def stored(self, key: bytes) -> None: ...
    def drop(self, key: bytes, *, by_writer: bool = False) -> None: ...
    def use(self, keys: Sequence[bytes]) -> list[Any]: ...
    def release(self, keys: Sequence[bytes]) -> None: ...
    def touch(self, keys: Sequence[bytes]) -> None: ...
    def forget_first(self, key: bytes) -> None: ...
    def clear(self) -> None: ...


@dataclass
class _Write:
    """An object that is being written; it is worthless if the load fails that it rests on."""

    num_bytes: int
    progress: Progress
    end: int  # of what it holds, in tokens
    load_id: int | None
    num_tried: int = 0
    is_stored: bool = True


class StoreOrders:
    """Orders what is stored, and hears whether it was.

    Kept tails come first: their blocks may be somebody else's in the next step. Rows that do not
    fit in the buffer are stored in later steps of their request. Spare tails take what is left.

    Attributes:
        tables: Request id -> its blocks, by group; set before the first step.
        on_stored: Told of every object that can be loaded now: its key, whose it was, and where
            what it holds ends, in tokens.
    """

    def __init__(
        self,
        layout: TierLayout,
        index: Index,
        counts: TierCounts,
        staging_bytes: int,
        num_parts: int,
    ) -> None:
        self._layout, self._index, self._counts = layout, index, counts
        self._staging_bytes, self._num_parts = staging_bytes, num_parts
        self._choice = TailChoice(
            layout.unit,
            lookahead=layout.unit if layout.tail_looks_ahead else 0,
            least_gain=layout.tokens_for_a_tail,
        )
        self.tables: Callable[[str], Tables] = lambda request_id: ()
        self.on_stored: list[Callable[[bytes, Request, int], None]] = []
        self._writing: dict[bytes, _Write] = {}
        self._failed_loads: set[int] = set()
        self._runs: list[Run] = []
        self._room = 0  # bytes left in the step's buffer
        self._spares: list[tuple[int, int, Progress, Tables]] = []

    def orders(self, scheduled: Mapping[str, int], live: Mapping[str, Progress]) -> list[Run]:
        """Return what is stored of a step.

        Args:
            scheduled: Request id -> tokens of the step.
            live: Request id -> its progress.
        """
        self._runs, self._room = [], self._staging_bytes
        # In most steps of decoding nothing is complete, and every running request is asked.
        complete = [
            (progress, end)
            for request_id, num_tokens in scheduled.items()
            if (progress := live.get(request_id)) is not None
            and (end := progress.request.num_computed_tokens + num_tokens) >= progress.next_end
        ]
        for progress, end in complete:
            self._store(progress, end)
        if self._spares:
            self._store_spares()
        return self._runs

    def _store(self, progress: Progress, end: int) -> None:
        """Order what a request's first ``end`` tokens add to the tier.

        Rows are stored up to the last token that is known for certain, and whose hash is.
        """
        layout, request = self._layout, progress.request
        end = min(end, len(request.block_hashes) * layout.hash_tokens)
        tables = self.tables(request.request_id)
        if not tables:
            return
        if layout.tails and end > progress.passed:
            self._store_tails(progress, end, tables)
        last = min(end // layout.unit, layout.num_named_units(len(request.block_hashes)))
        while progress.next_unit < last and self._store_rows(progress, last, tables):
            pass
        is_behind = progress.next_unit < last
        progress.next_end = 0 if is_behind else (end // layout.unit + 1) * layout.unit

    def _store_rows(self, progress: Progress, last: int, tables: Tables) -> bool:
        """Order the next consecutive units that the tier lacks; return whether there was room."""
        layout, hashes = self._layout, progress.request.block_hashes
        keys: list[bytes] = []
        places: list[Any] = []
        while progress.next_unit < last:
            key = layout.row_key(hashes, progress.next_unit)
            assert key is not None, "it can be named"
            if not self._need_not_store(key):
                place = self._reserve(key, progress, (progress.next_unit + 1) * layout.unit)
                if place is None:
                    break
                keys.append(key)
                places.append(place)
            elif keys:
                break
            progress.next_unit += 1
        if keys:
            first = progress.next_unit - len(keys)
            self._runs.append(rows_run(layout, keys, places, first, tables))
        return bool(keys)

    def _store_tails(self, progress: Progress, end: int, tables: Tables) -> None:
        request = progress.request
        start, progress.passed = progress.passed, end
        choice, prompt_tokens = self._choice, request.num_prompt_tokens
        kept = choice.kept(start, end, prompt_tokens, progress.junction)
        marginal = choice.marginal(start, end, prompt_tokens, progress.junction)
        rank, rolling = choice.rolling(start, end, prompt_tokens)
        for boundary in kept:
            if key := self._store_tail(progress, boundary, tables, KEPT):
                progress.tails.append(key)
        if rolling and (key := self._store_tail(progress, rolling, tables, rank)):
            if progress.rolling is not None:
                self._index.forget_first(progress.rolling)
            progress.rolling = key
        spares = choice.spare(start, end, {*kept, *marginal, rolling})
        spares += [(MARGINAL, boundary) for boundary in marginal]
        self._spares += [(rank, boundary, progress, tables) for rank, boundary in spares]

    def _store_spares(self) -> None:
        """Order spare tails, the highest ranks first."""
        self._spares.sort(key=lambda spare: spare[0], reverse=True)
        for rank, boundary, progress, tables in self._spares:
            self._store_tail(progress, boundary, tables, rank)
        self._spares.clear()

    def _store_tail(
        self, progress: Progress, boundary: int, tables: Tables, rank: int
    ) -> bytes | None:
        """Order a boundary's tail; return its key, also if it is there already."""
        layout = self._layout
        key = layout.tail_key(progress.request.block_hashes, boundary)
        if key is None:
            return None
        if self._need_not_store(key):
            return key
        if not holds_tail(layout, boundary, tables, NULL_BLOCK_ID):
            return None
        place = self._reserve(key, progress, boundary, rank)
        if place is None:
            return None
        self._runs.append(tail_run(layout, key, place, boundary, tables))
        return key

    def _need_not_store(self, key: bytes) -> bool:
        return key in self._writing or self._index.is_known(key)

    def _reserve(self, key: bytes, progress: Progress, end: int, rank: int = KEPT) -> Any:
        layout = self._layout
        num_bytes = layout.unit_bytes if key[:1] == ROWS else layout.tail_bytes
        if num_bytes + HEADER_BYTES > self._room:
            return None
        place = self._index.reserve(key, num_bytes, self._num_parts, rank)
        if place is not None:
            self._room -= num_bytes + HEADER_BYTES
            self._writing[key] = _Write(num_bytes, progress, end, progress.load_id)
        elif rank == KEPT:
            self._counts.not_stored["full"] += 1
        return place

    # What became of it

    def load_failed(self, load_id: int) -> bool:
        """Nothing that rests on a load may be used; return whether that is new."""
        is_new = load_id not in self._failed_loads
        self._failed_loads.add(load_id)
        return is_new

    def part_written(self, key: bytes, num_parts: int, *, is_stored: bool) -> None:
        """So many parts of an object were written, or not; when all were tried, it is there or not.

        What a request has computed behind a load that failed is dropped. Rows that a worker had no
        buffer for are tried again while their request runs.
        """
        write = self._writing[key]
        write.num_tried += num_parts
        write.is_stored &= is_stored
        if write.num_tried < self._num_parts:
            return
        del self._writing[key]
        if write.is_stored and write.load_id not in self._failed_loads:
            self._index.stored(key)
            if self._index.is_known(key):  # not dropped while it was written
                for tell in self.on_stored:
                    tell(key, write.progress.request, write.end)
            self._counts.stored(key[:1], write.num_bytes * self._num_parts)
        else:
            self._index.drop(key, by_writer=True)
            if write.is_stored:
                self._counts.not_stored["load_failed"] += 1
            progress = write.progress
            if key[:1] == ROWS:
                unit = write.end // self._layout.unit - 1
                progress.next_unit, progress.next_end = min(progress.next_unit, unit), 0

    def is_idle(self) -> bool:
        """Whether nothing is being written."""
        return not self._writing
