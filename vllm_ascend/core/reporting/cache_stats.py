# SPDX-License-Identifier: Apache-2.0
"""The prefix cache's counters, and what they have gained since the last report.

An engine may report to several API servers, a step to only one of them. So what travels are
differences, which add up wherever they arrive; only the blocks by tier are a state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from operator import sub

import msgspec

# Far more than one step can bring; a bound for engines whose numbers nobody takes.
_MAX_OBSERVATIONS = 4096


class BoundaryKind(IntEnum):
    """Why the tail of a boundary is kept; interval: no other reason."""

    REPLAY = 0  # the same prompt may come again (`auto`: or leave it shortly before its end)
    FINISH = 1  # the request ended there, its next turn goes on there
    INTERVAL = 2  # a multiple of the retention interval
    JUNCTION = 3  # the request was seen to leave a cached prefix there


class CacheUpdate(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True, gc=False):
    """The counts since the last update. They cross processes as a short array.

    Attributes:
        blocks: Blocks in use, then free ones by tier. A state, not a difference.
        evicted: Blocks that were handed out with what they held, by tier from spare on; or
            empty: none of any tier.
        kept: Boundaries whose tails were kept, by :class:`BoundaryKind`; or empty.
        partial_hits: Requests let in with a hit that ends inside a block.
        copied_blocks: Blocks that workers were told to copy for them.
        junction_misses: Requests that started with a shorter hit than full and compressed groups
            matched, because no tail was cached where they left the cached prefix.
        prompt_tokens: Tokens of the prompts of the requests that started.
        hit_tokens: The hit of every request that started.
        look_up_seconds: The time of every look-up, those of waiting requests included.
        lost_prompts: Requests that started whose prompts return, but hit too little: what was
            cached until recently has been given up.
        passed_requests: Requests that were let in before others that came earlier.
        held_steps: Steps in which nobody else was let in so that the cache keeps its share.
        reserved_blocks: Blocks of that share. A state, not a difference.
    """

    blocks: tuple[int, ...]
    evicted: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    partial_hits: int = 0
    copied_blocks: int = 0
    junction_misses: int = 0
    prompt_tokens: int = 0
    hit_tokens: tuple[int, ...] = ()
    look_up_seconds: tuple[float, ...] = ()
    lost_prompts: int = 0
    passed_requests: int = 0
    held_steps: int = 0
    reserved_blocks: int = 0


class CacheStats:
    """Counters since the engine's start, observations since the last update: see there."""

    def __init__(self) -> None:
        self.kept = [0] * len(BoundaryKind)
        self.partial_hits = 0
        self.copied_blocks = 0
        self.junction_misses = 0
        self.prompt_tokens = 0
        self.lost_prompts = self.passed_requests = self.held_steps = 0
        self.reserved_blocks = 0
        self.hit_tokens: deque[int] = deque(maxlen=_MAX_OBSERVATIONS)
        self.look_up_seconds: deque[float] = deque(maxlen=_MAX_OBSERVATIONS)
        self._told_state: tuple[tuple[int, ...], int] = ((), 0)
        self._told_counts: tuple[int, ...] = ()

    def note_start(self, prompt_tokens: int, hit_tokens: int, *, missed_junction: bool) -> None:
        """Count a request that was let in for the first time."""
        self.prompt_tokens += prompt_tokens
        self.hit_tokens.append(hit_tokens)
        self.junction_misses += missed_junction

    def take(self, blocks: tuple[int, ...], evicted: Sequence[int]) -> CacheUpdate | None:
        """Return what is new since the last call, ``None`` if nothing is.

        Args:
            blocks: See :class:`CacheUpdate`.
            evicted: Evictions since the engine's start, by tier; always as many tiers.
        """
        started = (self.partial_hits, self.copied_blocks, self.junction_misses, self.prompt_tokens)
        admission = (self.lost_prompts, self.passed_requests, self.held_steps)
        counts = (*started, *admission, *self.kept, *evicted)
        state = blocks, self.reserved_blocks
        if counts == self._told_counts and not self.hit_tokens and not self.look_up_seconds:
            if state == self._told_state:
                return None
            # By far the most steps: decodes took blocks, and nothing else happened.
            self._told_state = state
            return CacheUpdate(blocks, reserved_blocks=self.reserved_blocks)
        told, num_kinds = self._told_counts or (0,) * len(counts), len(self.kept)
        partial_hits, copied_blocks, junction_misses, prompt_tokens, *others = map(
            sub, counts, told
        )
        lost_prompts, passed_requests, held_steps, *rest = others
        self._told_counts, self._told_state = counts, state
        update = CacheUpdate(
            blocks,
            tuple(rest[num_kinds:]),
            tuple(rest[:num_kinds]),
            partial_hits,
            copied_blocks,
            junction_misses,
            prompt_tokens,
            tuple(self.hit_tokens),
            tuple(self.look_up_seconds),
            lost_prompts,
            passed_requests,
            held_steps,
            self.reserved_blocks,
        )
        self.hit_tokens.clear()
        self.look_up_seconds.clear()
        return update
