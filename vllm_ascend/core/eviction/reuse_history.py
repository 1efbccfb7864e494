# SPDX-License-Identifier: Apache-2.0
"""Names of blocks and when they were used last, whether they are cached or were given up.

Only so does what is learned not depend on what was kept.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from vllm_ascend.core.eviction.block_classes import NUM_QUEUES
from vllm_ascend.core.eviction.hazard_queues import HazardQueues


class _Use(NamedTuple):
    queue: int
    time: int


class ReuseHistory:
    """Tells the tables of a rule how long each name waited. The oldest names are forgotten."""

    def __init__(self, rule: HazardQueues, num_names: int, unit: int) -> None:
        """Remember up to ``num_names``; who waits is counted by times in multiples of ``unit``."""
        self._rule, self._num_names, self._unit = rule, num_names, unit
        # None: in use, by somebody who will say when it is not any more.
        self._last_use: OrderedDict[Hashable, _Use | None] = OrderedDict()
        self._waiting: list[Counter[int]] = [Counter() for _ in range(NUM_QUEUES)]

    def __len__(self) -> int:
        return len(self._last_use)

    def num_seen(self, names: Sequence[Hashable]) -> int:
        """Return how many names at a prompt's start are remembered."""
        last_use = self._last_use
        for count, name in enumerate(names):
            if name not in last_use:
                return count
        return len(names)

    def take(self, names: Sequence[Hashable], now: int) -> None:
        """Names that are remembered are used again: their wait is over."""
        bins, tables = self._rule.bins, self._rule.tables
        for name in names:
            if (use := self._end_wait(name)) is not None:
                tables[use.queue].reused[bins.bin(now - use.time)] += 1
                self._last_use[name] = None

    def put_back(self, names: Sequence[Hashable], queues: Sequence[int], now: int) -> None:
        """Names wait from now on, each in its queue."""
        epoch, last_use = now // self._unit, self._last_use
        counts = Counter(queues)
        uses = {queue: _Use(queue, now) for queue in counts}
        for name, queue in zip(names, queues, strict=True):
            if name in last_use:
                self._give_up_wait(name, now)
                last_use.move_to_end(name)
            last_use[name] = uses[queue]
        for queue, count in counts.items():
            self._waiting[queue][epoch] += count
        while len(last_use) > self._num_names:
            name = next(iter(last_use))
            self._give_up_wait(name, now)
            del last_use[name]

    def _end_wait(self, name: Hashable) -> _Use | None:
        """Count a name among those who wait no more; return since when it did, if it did."""
        use = self._last_use.get(name)
        if use is not None:
            self._waiting[use.queue][use.time // self._unit] -= 1
        return use

    def _give_up_wait(self, name: Hashable, now: int) -> None:
        if (use := self._end_wait(name)) is not None:
            age_bin = self._rule.bins.bin(now - use.time)
            self._rule.tables[use.queue].forgotten[age_bin] += 1

    def waiting(self, now: int) -> list[list[float]]:
        """Return who waits, by queue and bin of age."""
        bins, waiting = self._rule.bins, []
        for queue, counts in enumerate(self._waiting):
            self._waiting[queue] = counts = +counts  # without zeros
            by_bin = [0.0] * len(bins)
            for epoch, count in counts.items():
                by_bin[bins.bin(max(now - epoch * self._unit, 0))] += count
            waiting.append(by_bin)
        return waiting

    def clear(self) -> None:
        """Forget all names; what was counted stays."""
        self._last_use.clear()
        self._waiting = [Counter() for _ in range(NUM_QUEUES)]
