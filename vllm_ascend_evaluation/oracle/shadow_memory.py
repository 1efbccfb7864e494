# SPDX-License-Identifier: Apache-2.0
"""The KV cache of the fake worker: for every group, block and row, who wrote what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from vllm_ascend_evaluation.oracle.digests import GARBAGE, UNWRITTEN, Stamps
from vllm_ascend_evaluation.oracle.groups import GroupRules

NO_GROUP = -1


class Life:
    """One stay of a request in the cache, from its admission to its end or preemption.

    A request that resumes after a preemption begins another life: the blocks of the former one
    are no longer its own, even if it finds them again by their key.
    """

    __slots__ = ("__weakref__", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id


class ShadowMemory:
    """Stamps for every row of every block, in one plane per group.

    All groups share the raw tensors, so a block holds the rows of one group at a time: giving
    it to another group destroys what it held. `rows[g][b, i]` is the stamp of row i of block b
    as group g sees it; `draft_rows[g]` the same for the draft model's layers in that group.

    Attributes:
        epoch: per block, a number that changes whenever any of its rows does.
    """

    def __init__(self, num_blocks: int, rules: Sequence[GroupRules]) -> None:
        shapes = [(num_blocks, rule.rows_per_block) for rule in rules]
        self.rows: list[Stamps] = [np.zeros(shape, np.uint64) for shape in shapes]
        self.draft_rows: dict[int, Stamps] = {
            group_id: np.zeros(shapes[group_id], np.uint64)
            for group_id, rule in enumerate(rules)
            if rule.drafts is not None
        }
        self.epoch: npt.NDArray[np.int64] = np.zeros(num_blocks, np.int64)
        self.group_of: list[int] = [NO_GROUP] * num_blocks
        self.owner: list[Life | None] = [None] * num_blocks

    def give(self, block_id: int, group_id: int, life: Life) -> None:
        """Hand a freshly allocated block to a request. Whatever was in it is lost."""
        self._wipe_block(block_id)
        self.group_of[block_id] = group_id
        self.owner[block_id] = life

    def wipe(self, block_ids: Iterable[int]) -> None:
        """Zero whole blocks, as the worker does for `new_block_ids_to_zero`."""
        for block_id in block_ids:
            self._wipe_block(block_id)

    def copy(self, src_block_id: int, dst_block_id: int) -> None:
        """Copy a whole page; the destination keeps its owner."""
        self._wipe_block(dst_block_id)
        group_id = self.group_of[src_block_id]
        self.group_of[dst_block_id] = group_id
        if group_id == NO_GROUP:
            return
        for plane in self.planes(group_id):
            plane[dst_block_id] = plane[src_block_id]

    def spoil(self, block_id: int, group_id: int, first_row: int) -> None:
        """Mark the rows from `first_row` on as what nobody may read."""
        for plane in self.planes(group_id):
            plane[block_id, first_row:] = GARBAGE

    def mark(self, block_id: int, group_id: int, rows: slice, stamp: int) -> None:
        """Put a stamp that no digest has on rows of a block, draft rows included."""
        for plane in self.planes(group_id):
            plane[block_id, rows] = stamp
        self.epoch[block_id] += 1

    def holds(self, block_id: int, num_rows: int | None, stamp: int) -> bool:
        """Whether any of a block's first ``num_rows`` rows has a stamp; ``None``: any row."""
        group_id = self.group_of[block_id]
        if group_id == NO_GROUP:
            return False
        return bool((self.rows[group_id][block_id, :num_rows] == stamp).any())

    def writer_name(self, block_id: int) -> str | None:
        """The request that the block was last given to."""
        owner = self.owner[block_id]
        return None if owner is None else owner.request_id

    def planes(self, group_id: int) -> list[Stamps]:
        draft = self.draft_rows.get(group_id)
        return [self.rows[group_id]] if draft is None else [self.rows[group_id], draft]

    def _wipe_block(self, block_id: int) -> None:
        self.epoch[block_id] += 1
        group_id = self.group_of[block_id]
        if group_id != NO_GROUP:
            for plane in self.planes(group_id):
                plane[block_id] = UNWRITTEN
