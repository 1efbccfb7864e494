# SPDX-License-Identifier: Apache-2.0
"""A cache of names alone: what a rule would keep, with nothing in memory but the names."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from vllm_ascend.core.eviction.class_queues import ClassQueues
from vllm_ascend.core.eviction.rules import EvictionRule


class NameCache:
    """Holds up to ``capacity`` names of prefixes; a rule says which go.

    Attributes:
        capacity: How many names stay between two prompts.
    """

    def __init__(self, rule: EvictionRule, capacity: int) -> None:
        self._rule, self.capacity = rule, capacity
        self._names: ClassQueues[Hashable] = ClassQueues()

    def __len__(self) -> int:
        return len(self._names)

    def num_cached(self, names: Sequence[Hashable]) -> int:
        """Return how many names at a prompt's start are there."""
        for count, name in enumerate(names):
            if name not in self._names:
                return count
        return len(names)

    def use(self, names: Sequence[Hashable], queues: Sequence[int], now: int) -> None:
        """Enter a prompt's names, the last ones to be given up first; give up what is too much."""
        for name, queue in zip(reversed(names), reversed(queues), strict=True):
            self._names.add(name, queue, now)
        self._names.overflow(self._rule, self.capacity, now)
        if (excess := len(self._names) - self.capacity) > 0:
            self._names.give_up(excess, self._rule, self.capacity, now)

    def clear(self) -> None:
        """Forget everything."""
        self._names.clear()
