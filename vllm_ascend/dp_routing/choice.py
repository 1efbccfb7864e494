# SPDX-License-Identifier: Apache-2.0
"""Which rank gets a request: a pure function of what each has of it, and of what waits there.

All costs are tokens of prefill. What another rank has cached and this one would compute anew is a
copy. A copied token costs more than one that waits: the wait is over once, but the copy also takes
memory from other prefixes, which are then computed anew as well. Requests that live on the same
prefix share the price of a copy, so that a hot prefix spreads over the ranks and a session stays.

That holds as long as the wait is one that a request can bear. Behind a much longer queue than on
another rank a token that waits costs as much as one that is copied: nobody waits much longer than
it takes to compute his prefix anew, while other ranks are idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

COPY_WEIGHT = 16
"""What a copied token costs a prefix that nobody shares, where one that waits costs 1."""
PATIENCE_TOKENS = 262_144
"""So many tokens more may wait on a rank than on the one where the fewest do, at the price of 1:
some seconds of prefill. Those behind them cost what copied tokens do."""
LIVE_TOKENS = 512
"""What a live request costs: it slows every step down that the new one takes part in."""
RECENT_WEIGHT = 0.8
"""What a token costs that a rank was given lately: it fills a cache that others fill less."""
LOAD_WEIGHT = 0.05
"""What a token costs that a rank loads, from a tier or from the engine that has computed it: a
small part of the time to compute it."""
DISK_WEIGHT = 8
"""What a token costs, beside its load, that a rank has from a disk because another rank has stored
it there: a copy as well, which need not be computed. Without this price sessions wander
(docs/data-parallel.md)."""


class RankLoad(NamedTuple):
    """One rank, as one request finds it.

    Attributes:
        copied_tokens: What the rank would compute of the prompt although another one has it.
        queued_tokens: What it has to compute for others first.
        num_live: Requests that wait or run there.
        recent_tokens: What it was given to compute lately, done or not.
        loaded_tokens: What it would load of what it has in its own tier, or pull.
        disk_tokens: What it would load of what other ranks have on the disk.
    """

    copied_tokens: int
    queued_tokens: int
    num_live: float
    recent_tokens: float
    loaded_tokens: int = 0
    disk_tokens: int = 0


def cost(load: RankLoad, num_sharers: int, least_queued_tokens: int = 0) -> float:
    """Return what sending a request to a rank costs, in tokens that wait.

    Args:
        load: The rank.
        num_sharers: Live requests, on all ranks, whose cached prefix is this request's.
        least_queued_tokens: What waits on the rank where the least does.
    """
    unbearable = max(load.queued_tokens - least_queued_tokens - PATIENCE_TOKENS, 0)
    return (
        (COPY_WEIGHT * load.copied_tokens + DISK_WEIGHT * load.disk_tokens) / (1 + num_sharers)
        + load.queued_tokens
        + (COPY_WEIGHT - 1) * unbearable
        + LIVE_TOKENS * load.num_live
        + RECENT_WEIGHT * load.recent_tokens
        + LOAD_WEIGHT * (load.loaded_tokens + load.disk_tokens)
    )


def choose_rank(loads: Sequence[RankLoad], num_sharers: int, tie: int) -> int:
    """Return the rank that costs least.

    Args:
        loads: By rank.
        num_sharers: See :func:`cost`.
        tie: Decides between ranks that cost the same. Consecutive numbers take them in turn.

    Raises:
        ValueError: There is no rank.
    """
    if not loads:
        raise ValueError("there is no rank to choose")
    least_queued = min(load.queued_tokens for load in loads)
    costs = [cost(load, num_sharers, least_queued) for load in loads]
    least = min(costs)
    equal = [rank for rank, price in enumerate(costs) if price == least]
    return equal[tie % len(equal)]
