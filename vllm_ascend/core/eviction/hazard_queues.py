# SPDX-License-Identifier: Apache-2.0
"""The order learned from who came back: the queue whose head promises least gives it up."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_ascend.core.eviction.block_classes import NUM_QUEUES, BlockClass
from vllm_ascend.core.eviction.life_table import AgeBins, LifeTable, gittins_indices
from vllm_ascend.core.eviction.rules import EMPTY, OVERFLOW_QUEUES, Waiting, candidates

# What a count is worth at the next update: half of it after 34.
FADING = 0.98
# Lives without a reuse that are added to every bin of ages.
_PRIOR_LIVES = 1.0


class HazardQueues:
    """Gives up what promises least, of equal ones the oldest, and protects as ``protect`` does.

    Attributes:
        bins: How ages are told apart.
        tables: By queue, how long its blocks waited until they were used again.
    """

    name = "learned"
    parts_prompts = True

    def __init__(self, unit: int, longest: int) -> None:
        """Tell ages apart from ``unit`` up to ``longest``, in blocks used meanwhile."""
        self.bins = AgeBins(unit, longest)
        self.tables = [LifeTable(len(self.bins)) for _ in range(NUM_QUEUES)]
        self._indices = [[0.0] * len(self.bins) for _ in range(NUM_QUEUES)]

    def update(self, waiting: Sequence[Sequence[float]]) -> None:
        """Judge by what was counted so far, and by who waits: by queue and bin of age."""
        for queue, table in enumerate(self.tables):
            hazards = table.hazards(waiting[queue], prior=_PRIOR_LIVES)
            self._indices[queue] = gittins_indices(hazards, self.bins.starts)
            table.fade(FADING)
        # What a prompt added is worth nothing without what it hit: that must not go first.
        for rest in (BlockClass.LONG, BlockClass.NEW, BlockClass.RETURNING):
            hit = rest.hit
            self._indices[hit] = list(map(max, self._indices[hit], self._indices[rest]))
        for queue, joined in OVERFLOW_QUEUES.items():
            self._indices[joined] = self._indices[queue]

    def victim(self, waiting: Waiting) -> int:
        """See :class:`~vllm_ascend.core.eviction.rules.EvictionRule`."""
        heads, _, lengths, room, now = waiting
        indices, bin_of = self._indices, self.bins.bin
        queues = [q for q in candidates(heads, lengths, room) if heads[q] != EMPTY]
        if len(queues) == 1:
            return queues[0]
        return min(queues, key=lambda q: (indices[q][bin_of(now - heads[q])], heads[q]))

    def num_overflowing(self, lengths: Sequence[int], room: int) -> int:
        """See :class:`~vllm_ascend.core.eviction.rules.EvictionRule`: these go as learned."""
        return 0
