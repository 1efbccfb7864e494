# SPDX-License-Identifier: Apache-2.0
"""Queues by class: who waits in each, least recently used first, and since when."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

from vllm_ascend.core.eviction.block_classes import NUM_QUEUES
from vllm_ascend.core.eviction.rules import (
    EMPTY,
    OVERFLOW_QUEUES,
    OVERFLOWED,
    EvictionRule,
    Waiting,
    oldest,
)

K = TypeVar("K", bound=Hashable)


class ClassQueues(Generic[K]):
    """Keys that wait, each in one queue. All operations are O(1) per key."""

    def __init__(self) -> None:
        self._queues: list[OrderedDict[K, int]] = [OrderedDict() for _ in range(NUM_QUEUES)]
        self._queue_of: dict[K, int] = {}
        # Of those that wait beyond the share of returning prompts, since when they do.
        self._joined: dict[K, int] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._queue_of

    def __len__(self) -> int:
        return len(self._queue_of)

    def add(self, key: K, queue: int, now: int) -> None:
        """Let a key wait behind all others of a queue; if it waits already, it moves.

        ``queue`` is none of those that :meth:`overflow` fills.
        """
        if key in self._queue_of:
            self.discard(key)
        self._queue_of[key] = queue
        self._queues[queue][key] = now

    def discard(self, key: K) -> None:
        """Take a key out, if it waits."""
        queue = self._queue_of.pop(key, None)
        if queue is not None:
            del self._queues[queue][key]
            if queue in OVERFLOWED:
                del self._joined[key]

    def give_up(self, count: int, rule: EvictionRule, room: int, now: int) -> list[K]:
        """Take out the ``count`` keys that a rule gives up first; so many must wait.

        ``room``: see :class:`~vllm_ascend.core.eviction.rules.Waiting`.
        """
        given_up: list[K] = []
        queues = self._queues
        while (missing := count - len(given_up)) > 0:
            heads = self._heads()
            joined = list(heads)
            for number in OVERFLOWED:
                if queues[number]:
                    joined[number] = self._joined[next(iter(queues[number]))]
            lengths = [len(q) for q in queues]
            victim = rule.victim(Waiting(heads, joined, lengths, room, now))
            queue, time = queues[victim], heads[victim]
            # What was used at once is worth the same: nobody has to be asked again.
            for key in list(islice(queue, missing)):
                if queue[key] != time:
                    break
                del queue[key], self._queue_of[key]
                given_up.append(key)
                if victim in OVERFLOWED:
                    del self._joined[key]
        return given_up

    def overflow(self, rule: EvictionRule, room: int, now: int) -> None:
        """Let those of returning prompts that a rule has too many of wait as if used just now.

        ``room``: see :class:`~vllm_ascend.core.eviction.rules.Waiting`.
        """
        queues = self._queues
        for _ in range(rule.num_overflowing([len(q) for q in queues], room)):
            queue = oldest(self._heads(), OVERFLOW_QUEUES)
            key = next(iter(queues[queue]))
            joined = self._queue_of[key] = OVERFLOW_QUEUES[queue]
            queues[joined][key] = queues[queue].pop(key)
            self._joined[key] = now

    def _heads(self) -> list[int]:
        return [q[next(iter(q))] if q else EMPTY for q in self._queues]

    def clear(self) -> None:
        """Let nobody wait any more."""
        self._queue_of.clear()
        self._joined.clear()
        for queue in self._queues:
            queue.clear()
