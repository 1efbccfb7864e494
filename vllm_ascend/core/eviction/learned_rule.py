# SPDX-License-Identifier: Apache-2.0
"""The learned order, in force unless a simpler one is ahead of it.

For each class of blocks a life table tells how long they wait until they are used again; names that
were given up are remembered, so that it does not depend on the cache (``reuse_history``,
``life_table``, ``hazard_queues``).

No such order is better on all traffic. So it duels with LRU and with the protection of returning
prompts: caches of names alone follow the prompts, one by each rule, and a simpler rule that hit
more of late is in force instead. At the start it is LRU, until a first table is there, and as long
as all three hit the same it is the protection.

Source of the idea of a duel: Qureshi et al., "Adaptive Insertion Policies for High Performance
Caching", ISCA 2007.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import compress
from typing import NamedTuple

from vllm_ascend.core.eviction.hazard_queues import FADING, HazardQueues
from vllm_ascend.core.eviction.name_cache import NameCache
from vllm_ascend.core.eviction.reuse_history import ReuseHistory
from vllm_ascend.core.eviction.rules import EvictionRule, Lru, ProtectReturning, Waiting

# By name, whatever may be in force.
RULE_NAMES = (Lru.name, ProtectReturning.name, HazardQueues.name)
_PROTECTION = RULE_NAMES.index(ProtectReturning.name)
# In capacities of the cache:
REMEMBERED = 8  # names
_UPDATES = 8  # looks at what was counted in the time in which as many blocks are used
_FINEST_AGE = 1 / 32
# In a larger pool the caches of names follow so many names, or up to twice as many, always the same
# ones, and have their share of the memory: which of them hits more shows as well. Of fewer it would
# show later, since most hits are of few names.
_LEAST_FOLLOWED = 4096
# Who hit fewer names more than another, of late, hit nothing that the other did not.
_DIFFERENCE = 0.5
# Large pools remember no more than these, or two for each block.
_MOST_NAMES = 200_000


class _Start(NamedTuple):
    names: Sequence[Hashable]
    num_seen: int
    queues: Sequence[int]
    time: int


class LearnedRule:
    """Hazard queues that duel with other rules; see the module. Times are names used so far.

    Attributes:
        in_force: The rule that decides now.
        now: The time.
    """

    def __init__(self, base: EvictionRule, capacity: int) -> None:
        """Learn for a cache of ``capacity`` blocks; ``base`` is in force at first."""
        unit = max(round(capacity * _FINEST_AGE), 1)
        num_names = min(REMEMBERED * capacity, max(2 * capacity, _MOST_NAMES))
        self._learned = HazardQueues(unit, 2 * REMEMBERED * capacity)
        self._history = ReuseHistory(self._learned, num_names, unit)
        self._rules: tuple[EvictionRule, ...] = (base, ProtectReturning(), self._learned)
        self._one_in = max(capacity // _LEAST_FOLLOWED, 1)
        self._caches = [NameCache(rule, capacity // self._one_in) for rule in self._rules]
        self._hits = [0.0] * len(self._rules)
        self._started: list[_Start] = []
        self.in_force, self.now = base, 0
        self._period = max(capacity // _UPDATES, 1)
        self._next_update = self._period

    @property
    def name(self) -> str:
        """What decides now."""
        return self.in_force.name

    @property
    def parts_prompts(self) -> bool:
        """See :class:`~vllm_ascend.core.eviction.rules.EvictionRule`."""
        return self.in_force.parts_prompts

    def victim(self, waiting: Waiting) -> int:
        """See :class:`~vllm_ascend.core.eviction.rules.EvictionRule`."""
        return self.in_force.victim(waiting)

    def num_overflowing(self, lengths: Sequence[int], room: int) -> int:
        """See :class:`~vllm_ascend.core.eviction.rules.EvictionRule`."""
        return self.in_force.num_overflowing(lengths, room)

    def num_seen(self, names: Sequence[Hashable]) -> int:
        """Return how many names at a prompt's start came before and are remembered."""
        return self._history.num_seen(names)

    def start(self, names: Sequence[Hashable], num_seen: int, queues: Sequence[int]) -> None:
        """A prompt comes, the first ``num_seen`` of whose blocks came before.

        Args:
            names: Of all its blocks.
            num_seen: As :meth:`num_seen` says.
            queues: Of all its blocks, where they will wait.
        """
        self._started.append(_Start(names, num_seen, queues, self.now))

    def _count_started(self) -> None:
        """Count the prompts that came since the last one ended.

        Nobody asks before. Requests start in ``schedule()``, for which all others wait; they end
        behind it.
        """
        one_in = self._one_in
        for names, num_seen, queues, now in self._started:
            self._history.take(names[:num_seen], now)
            is_followed = [number % one_in == 0 for number in map(hash, names)]
            followed = list(compress(names, is_followed))
            queues = list(compress(queues, is_followed))
            for i, cache in enumerate(self._caches):
                self._hits[i] += one_in * cache.num_cached(followed)
                cache.use(followed, queues, now + len(names))
        self._started.clear()

    def end(self, names: Sequence[Hashable], queues: Sequence[int]) -> bool:
        """Its blocks are not used any more; return whether it is time for an update."""
        self._count_started()
        self.now += len(names)
        self._history.put_back(names, queues, self.now)
        return self.now >= self._next_update

    def update(self, num_cached: int) -> None:
        """Judge by what was counted so far; the cache holds about ``num_cached`` names."""
        self._next_update = self.now + self._period
        self._learned.update(self._history.waiting(self.now))
        self.in_force = self._rules[self._ahead()]
        self._hits = [hits * FADING for hits in self._hits]
        for cache in self._caches:
            cache.capacity = num_cached // self._one_in

    def _ahead(self) -> int:
        """Return which rule is to be in force: the last, unless one before it is ahead.

        As long as no rule hit what another did not, nothing speaks for an order that was learned.
        Then what came again is protected, so that a flood is no worse than without learning.
        """
        if max(self._hits) - min(self._hits) < _DIFFERENCE:
            return _PROTECTION
        ahead = len(self._rules) - 1
        for i in reversed(range(ahead)):
            if self._hits[i] > self._hits[ahead] + _DIFFERENCE:
                ahead = i
        return ahead

    def clear(self) -> None:
        """Forget all names; what was learned stays."""
        self._count_started()
        self._history.clear()
        for cache in self._caches:
            cache.clear()
