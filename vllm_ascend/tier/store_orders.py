# SPDX-License-Identifier: Apache-2.0
"""What a step stores: rows and tails that the tier lacks, as much as a buffer holds."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.request import Request

from vllm_ascend.core.policy.boundaries import AUTO_RETENTION_INTERVAL_TOKENS, align_down
from vllm_ascend.tier.due import DueRequests
from vllm_ascend.tier.layout import ROWS, TierLayout
from vllm_ascend.tier.objects import HEADER_BYTES
from vllm_ascend.tier.orders import Run, Segment
from vllm_ascend.tier.progress import (
    Progress,
    Tables,
    Tail,
    cached_tail_segments,
    rows_run,
    tail_segments,
)
from vllm_ascend.tier.statistics import TierCounts
from vllm_ascend.tier.tail_choice import KEPT, MARGINAL, TailChoice

CachedTail = Callable[[Sequence[BlockHash], int], Mapping[int, Mapping[int, int]] | None]


class Index(Protocol):
    """What a backend's scheduler half can do; see ``host_memory.HostIndex``."""

    is_remote: bool

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]: ...
    def has_room(self, num_bytes: int, num_parts: int, rank: int) -> bool: ...
    def is_known(self, key: bytes) -> bool: ...
    @property
    def known(self) -> Container[bytes]: ...
    def reserve(
        self, keys: Sequence[bytes], num_bytes: int, num_parts: int, rank: int
    ) -> list[Any]: ...
    def stored(self, key: bytes) -> None: ...
    def drop(self, key: bytes, *, by_writer: bool = False) -> None: ...
    def use(self, keys: Sequence[bytes]) -> list[Any]: ...
    def release(self, keys: Sequence[bytes]) -> None: ...
    def touch(self, keys: Sequence[bytes]) -> None: ...
    def forget_first(self, key: bytes) -> None: ...
    def clear(self) -> bool: ...


class _Writes(NamedTuple):
    """Objects of a request that one step began to write: rows one behind the other, or a tail.

    Attributes:
        num_bytes: Of a part of each.
        load_id: If what they rest on cannot be loaded, they are dropped.
    """

    num_bytes: int
    progress: Progress
    load_id: int | None


class StoreOrders:
    """Orders what is stored, and hears whether it was.

    Kept tails come first: their blocks may be somebody else's in the next step. Rows that do not
    fit in the buffer are stored in later steps of their request. Spare tails take what is left.

    Attributes:
        tables: Request id -> its blocks, by group; set before the first step.
        cached_tail: Hashes of a request, boundary -> ids of the tail's blocks in the KV cache, by
            group and ordinal; ``None``: not all of it is there.
        stale_tokens: Request id -> tokens whose draft rows were computed from tokens that were
            dropped since (streaming input).
        on_found: Told of every object that can be loaded now: its key, whose it was, and where
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
            least_gain_tokens=layout.tokens_for_a_tail,
            interval=align_down(AUTO_RETENTION_INTERVAL_TOKENS, layout.unit) or layout.unit,
        )
        self.tables: Callable[[str], Tables] = lambda request_id: ()
        self.cached_tail: CachedTail = lambda hashes, boundary: None
        self.stale_tokens: Callable[[str], Sequence[int]] = lambda request_id: ()
        self.on_found: list[Callable[[bytes, Request, int], None]] = []
        self._due = DueRequests()
        # By object. There are thousands at a time, so those of a step share what they can.
        self._writing: dict[bytes, _Writes] = {}
        self._ends: dict[bytes, int] = {}  # of what each holds, in tokens
        self._num_tried: dict[bytes, int] = {}  # parts, where some were
        self._not_stored: set[bytes] = set()  # where one of these was not
        self._failed_loads: dict[int, bool] = {}  # whether all workers have ended it
        self._runs: list[Run] = []
        self._room = 0  # bytes left in the step's buffer
        self._spares: list[tuple[int, int, Progress, Tables]] = []

    def begins(self, request: Request) -> None:
        """A request was given its blocks."""
        self._due.expect(request.request_id, 0)

    def ended(self, request: Request) -> None:
        """Nothing more comes of a request."""
        self._due.forget(request.request_id)

    def orders(
        self, scheduled: Mapping[str, int], live: Mapping[str, Progress], *, is_paused: bool
    ) -> list[Run]:
        """Return what is stored of a step.

        Args:
            scheduled: Request id -> tokens of the step.
            live: Request id -> its progress.
            is_paused: Nothing is; later steps store what of it is still there.
        """
        self._runs, self._room = [], self._staging_bytes
        for request_id in self._due.take(scheduled):
            if is_paused:
                self._due.expect(request_id, 0)
            elif (progress := live.get(request_id)) is not None:
                end = progress.request.num_computed_tokens + scheduled[request_id]
                self._due.expect(request_id, self._store(progress, end))
        if self._spares:
            self._store_spares()
        return self._runs

    def _store(self, progress: Progress, end: int) -> int:
        """Order what a request's first ``end`` tokens add to the tier.

        Rows are stored up to the last token that is known for certain, and whose hash is. Return
        how many more tokens complete something.
        """
        layout, request = self._layout, progress.request
        reached, end = end, min(end, len(request.block_hashes) * layout.hash_tokens)
        missing = max((end // layout.unit + 1) * layout.unit - reached, 0)
        tables = self.tables(request.request_id)
        if not tables:
            return missing
        if layout.tails and end > progress.passed:
            self._store_tails(progress, end, tables)
        last = min(end // layout.unit, layout.num_named_units(len(request.block_hashes)))
        if layout.rows_look_ahead and (stale := self.stale_tokens(request.request_id)):
            last = min(last, min(stale) // layout.unit)
        if progress.next_unit < last:
            self._store_rows(progress, last, tables)
        return 0 if progress.next_unit < last else missing

    def _store_rows(self, progress: Progress, last: int, tables: Tables) -> None:
        """Order what the tier lacks of the units before ``last``, as far as there is room."""
        layout, first = self._layout, progress.next_unit
        keys = layout.row_keys(progress.request.block_hashes, first, last)
        # Behind a hit these are thousands, and mostly all there.
        known, writing, start, count = self._index.known, self._writing, 0, len(keys)
        while start < count:
            if keys[start] in known or keys[start] in writing:
                start += 1
                continue
            end = start + 1
            while end < count and not (keys[end] in known or keys[end] in writing):
                end += 1
            lacking = keys[start:end]
            places = self._reserve(lacking, progress, (first + start + 1) * layout.unit)
            if places:
                stored = lacking[: len(places)]
                self._runs.append(rows_run(layout, stored, places, first + start, tables))
            start += len(places)
            if start < end:
                break
        progress.next_unit = first + start

    def _store_tails(self, progress: Progress, end: int, tables: Tables) -> None:
        choice, num_prompt_tokens = self._choice, progress.request.num_prompt_tokens
        if progress.prompt is None:
            progress.prompt = choice.of_prompt(num_prompt_tokens, progress.junction)
        prompt, start, progress.passed = progress.prompt, progress.passed, end
        kept = choice.kept(start, end, prompt.kept)
        rank, rolling = choice.rolling(max(start, num_prompt_tokens), end, prompt)
        asked = [*progress.unnamed, *(Tail(boundary, KEPT) for boundary in kept)]
        if rolling:
            asked.append(Tail(rolling, rank, rolls=True))
        progress.unnamed = []
        for tail in asked:
            if self._layout.tail_key(progress.request.block_hashes, tail.boundary) is None:
                progress.unnamed.append(tail)
            elif key := self._store_tail(progress, tail.boundary, tables, tail.rank):
                self._note_tail(progress, tail, key)
        if not self._has_room(MARGINAL):
            return
        spares = choice.spare(start, end, {*kept, *prompt.marginal, rolling})
        spares += [(MARGINAL, boundary) for boundary in prompt.marginal if start < boundary <= end]
        self._spares += [(rank, boundary, progress, tables) for rank, boundary in spares]

    def _note_tail(self, progress: Progress, tail: Tail, key: bytes) -> None:
        """Note a stored tail; the last one of an answer takes the place of the one before."""
        if not tail.rolls:
            progress.tails.append(key)
            return
        if progress.rolling is not None:
            self._index.forget_first(progress.rolling)
        progress.rolling = key

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
        if key is None or self._is_stale(progress, boundary):
            return None
        if self._need_not_store(key):
            return key
        if not self._has_room(rank):
            self._counts.not_stored["full"] += rank == KEPT
            return None
        segments = tail_segments(layout, boundary, tables)
        if not all(segment.is_whole() for segment in segments):
            segments = self._cached_segments(progress, boundary)
        if not segments:
            return None
        places = self._reserve([key], progress, boundary, rank)
        if not places:
            return None
        self._runs.append(Run(True, (key,), tuple(places), segments))
        return key

    def _is_stale(self, progress: Progress, boundary: int) -> bool:
        """Whether a tail has a stale draft row in it, or stands behind one that every hit reads."""
        layout, stale = self._layout, self.stale_tokens(progress.request.request_id)
        if layout.rows_look_ahead:
            return any(token < boundary for token in stale)
        first = boundary - max(group.tail_rows * group.tokens_per_row for group in layout.tails)
        return layout.tail_looks_ahead and any(first <= token < boundary for token in stale)

    def _cached_segments(self, progress: Progress, boundary: int) -> tuple[Segment, ...]:
        """Return where the KV cache has a tail that the request has left behind; empty: nowhere.

        The name of an answer's tail is known a unit behind it, where drafts look ahead. By then the
        windows have moved on. Blocks that are cached still are nobody's in this step.
        """
        if not self._layout.tail_looks_ahead:
            return ()
        cached = self.cached_tail(progress.request.block_hashes, boundary)
        if cached is None:
            return ()
        segments = cached_tail_segments(self._layout, boundary, cached)
        return segments if all(segment.is_whole() for segment in segments) else ()

    def _has_room(self, rank: int) -> bool:
        """Whether a tail of a rank may find room: most do not in a full tier."""
        return self._index.has_room(self._layout.tail_bytes, self._num_parts, rank)

    def _need_not_store(self, key: bytes) -> bool:
        return key in self._writing or self._index.is_known(key)

    def _reserve(
        self, keys: Sequence[bytes], progress: Progress, end: int, rank: int = KEPT
    ) -> list[Any]:
        """Return places for as many of the first objects as there is room.

        Args:
            end: Of what the first one holds, in tokens; each of the others holds a unit more.
        """
        layout = self._layout
        num_bytes = layout.unit_bytes if keys[0][:1] == ROWS else layout.tail_bytes
        keys = keys[: self._room // (num_bytes + HEADER_BYTES)]
        places = self._index.reserve(keys, num_bytes, self._num_parts, rank)
        self._room -= len(places) * (num_bytes + HEADER_BYTES)
        stored, writes = keys[: len(places)], _Writes(num_bytes, progress, progress.load_id)
        self._writing.update(dict.fromkeys(stored, writes))
        self._ends.update(
            zip(stored, range(end, end + len(stored) * layout.unit, layout.unit), strict=True)
        )
        if rank == KEPT and len(places) < len(keys):
            self._counts.not_stored["full"] += 1
        return places

    # What became of it

    def load_failed(self, load_id: int) -> bool:
        """Nothing that rests on a load may be used; return whether that is new."""
        is_new = load_id not in self._failed_loads
        self._failed_loads.setdefault(load_id, False)
        return is_new

    def load_ended(self, load_id: int) -> None:
        """Nothing more will rest on a load."""
        if load_id in self._failed_loads:
            self._failed_loads[load_id] = True
            self._forget_failed_loads()

    def _forget_failed_loads(self) -> None:
        """Forget failed loads on which nothing rests any more."""
        if self._failed_loads:
            rested_on = {writes.load_id for writes in self._writing.values()}
            for load_id, has_ended in list(self._failed_loads.items()):
                if has_ended and load_id not in rested_on:
                    del self._failed_loads[load_id]

    def part_written(self, key: bytes, num_parts: int, *, is_stored: bool) -> None:
        """So many parts of an object were written, or not; when all were tried, it is there or not.

        What a request has computed behind a load that failed is dropped. Rows that a worker had no
        buffer for are tried again while their request runs.
        """
        if not is_stored:
            self._not_stored.add(key)
        num_tried = self._num_tried.pop(key, 0) + num_parts
        if num_tried < self._num_parts:
            self._num_tried[key] = num_tried
            return
        num_bytes, progress, load_id = self._writing.pop(key)
        end, is_stored = self._ends.pop(key), key not in self._not_stored
        self._not_stored.discard(key)
        if is_stored and load_id not in self._failed_loads:
            self._index.stored(key)
            if self._index.is_known(key):  # not dropped while it was written
                self.tell_found(key, progress.request, end)
            self._counts.stored(key[:1], num_bytes * self._num_parts)
        else:
            self._index.drop(key, by_writer=True)
            if is_stored:
                self._counts.not_stored["load_failed"] += 1
            if key[:1] == ROWS:
                unit = end // self._layout.unit - 1
                progress.next_unit = min(progress.next_unit, unit)
                self._due.expect_at_once(progress.request.request_id)
        self._forget_failed_loads()

    def tell_found(self, key: bytes, request: Request, end: int) -> None:
        """Tell of an object that can be loaded; see ``on_found``."""
        for tell in self.on_found:
            tell(key, request, end)

    def keys_under_way(self) -> list[bytes]:
        """Return the objects that are being written."""
        return list(self._writing)

    def is_idle(self) -> bool:
        """Whether nothing is being written."""
        return not self._writing
