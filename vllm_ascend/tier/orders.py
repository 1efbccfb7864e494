# SPDX-License-Identifier: Apache-2.0
"""What a step's workers are told to move, and what they tell back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.pool.block_pool_methods import NULL_BLOCK_ID

Rows = npt.NDArray[np.int64]


class Segment(NamedTuple):
    """Rows of a request in one group: [first_row, end_row), one object's behind the other's.

    Attributes:
        first_row: May be negative: what is missing in front of the first token.
        skip_before: Rows before it are left alone, also if they are in the range.
        block_ids: Of the ordinals from ``max(first_row, 0) // rows_per_block`` on.
    """

    group_id: int
    first_row: int
    end_row: int
    skip_before: int
    rows_per_block: int
    block_ids: tuple[int, ...]

    def part(self, start: int, end: int, count: int) -> Segment:
        """Return the rows of the objects [start, end) of ``count`` equal ones."""
        per_object = (self.end_row - self.first_row) // count
        first_row, end_row = (self.first_row + i * per_object for i in (start, end))
        first = max(self.first_row, 0) // self.rows_per_block
        ordinals = max(first_row, 0) // self.rows_per_block, -(-end_row // self.rows_per_block)
        ids = self.block_ids[ordinals[0] - first : ordinals[1] - first]
        return self._replace(first_row=first_row, end_row=end_row, block_ids=ids)

    def is_whole(self) -> bool:
        """Whether the request holds every block that has such rows."""
        rows = self.rows_per_block
        wanted = -(-self.end_row // rows) - max(self.first_row, 0) // rows
        return len(self.block_ids) == wanted and NULL_BLOCK_ID not in self.block_ids

    def moved_blocks(self) -> list[int]:
        """Return the blocks of which a row is moved."""
        first_moved = max(self.first_row, self.skip_before, 0)
        if first_moved >= self.end_row:
            return []
        first = max(self.first_row, 0) // self.rows_per_block
        ids = self.block_ids[first_moved // self.rows_per_block - first :]
        return [block_id for block_id in ids if block_id != NULL_BLOCK_ID]

    def places(self) -> tuple[Rows, Rows, Any]:
        """Return block and place of every row, and which of them are moved."""
        rows = np.arange(self.first_row, self.end_row)
        known = np.maximum(rows, 0)
        ordinals = known // self.rows_per_block
        first = max(self.first_row, 0) // self.rows_per_block
        blocks = np.asarray(self.block_ids, np.int64)[ordinals - first]
        moved = (rows >= max(self.skip_before, 0)) & (blocks != NULL_BLOCK_ID)
        return blocks, known % self.rows_per_block, moved


class Run(NamedTuple):
    """Objects of one kind of a request: consecutive units, or one tail.

    Attributes:
        is_tail: Which kind.
        keys: One per object.
        places: Where the store has them, one per object; what that is, the backend knows.
        segments: One per group that has a part in such objects, in the order of the layout.
    """

    is_tail: bool
    keys: tuple[bytes, ...]
    places: tuple[Any, ...]
    segments: tuple[Segment, ...]

    def chosen(self, ordinals: Sequence[int]) -> list[Run]:
        """Return the runs of some of the objects, by ascending ordinals."""
        runs: list[Run] = []
        start = None
        for i, ordinal in enumerate(ordinals):
            start = ordinal if start is None else start
            if i + 1 == len(ordinals) or ordinals[i + 1] != ordinal + 1:
                runs.append(self.part(start, ordinal + 1))
                start = None
        return runs

    def part(self, start: int, end: int) -> Run:
        """Return the run of the objects [start, end) of this one."""
        count = len(self.keys)
        if (start, end) == (0, count):
            return self
        segments = tuple(segment.part(start, end, count) for segment in self.segments)
        return Run(self.is_tail, self.keys[start:end], self.places[start:end], segments)


class Load(NamedTuple):
    """What is loaded for a request.

    Attributes:
        load_id: Tells loads of a request apart.
        is_async: The request waits, and others run meanwhile.
        block_ids: The blocks that are written.
        num_tokens: Tokens that it brings.
    """

    request_id: str
    load_id: int
    is_async: bool
    runs: tuple[Run, ...]
    block_ids: frozenset[int]
    num_tokens: int

    @property
    def keys(self) -> list[bytes]:
        """All its objects."""
        return [key for run in self.runs for key in run.keys]


@dataclass
class Orders(KVConnectorMetadata):
    """What a step's workers are to do.

    Attributes:
        memory: Where the host backend's memory is, see ``host_memory.MemoryAddress``; ``None``:
            there is none.
        digest: Of the scheduler's layout; workers have the same, or use other names.
    """

    loads: list[Load] = field(default_factory=list)
    stores: list[Run] = field(default_factory=list)
    memory: Any = None
    digest: str = ""


@dataclass
class Report(KVConnectorWorkerMetadata):
    """What workers have done since the last report.

    Attributes:
        stored: Keys -> how many workers have stored their part.
        not_stored: Keys -> how many workers have not stored their part.
        ended: Loads -> how many workers have ended them, with or without success.
        unusable: Keys that could not be loaded.
        is_slow: A load took longer than it may, or the store did not answer.
    """

    stored: dict[bytes, int] = field(default_factory=dict)
    not_stored: dict[bytes, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    unusable: set[bytes] = field(default_factory=set)
    is_slow: bool = False

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        """Add what another worker tells, or the same one in a later step."""
        assert isinstance(other, Report)
        _add(self.stored, other.stored)
        _add(self.not_stored, other.not_stored)
        _add(self.ended, other.ended)
        self.unusable |= other.unusable
        self.is_slow |= other.is_slow
        return self


def blocks_by_group(runs: Iterable[Run]) -> dict[int, list[int]]:
    """Return the blocks whose rows are moved, ascending, by group."""
    blocks: dict[int, set[int]] = {}
    for segment in (segment for run in runs for segment in run.segments):
        blocks.setdefault(segment.group_id, set()).update(segment.moved_blocks())
    return {group_id: sorted(ids) for group_id, ids in blocks.items()}


def ids_between(
    table: Sequence[KVCacheBlock], first_row: int, end_row: int, rows: int
) -> tuple[int, ...]:
    """Return the ids of a table's blocks that hold rows of [first_row, end_row).

    Args:
        rows: Rows per block.
    """
    held = table[max(first_row, 0) // rows : -(-end_row // rows)]
    return tuple([block.block_id for block in held])


def _add(counts: dict[Any, int], more: dict[Any, int]) -> None:
    for key, count in more.items():
        counts[key] = counts.get(key, 0) + count
