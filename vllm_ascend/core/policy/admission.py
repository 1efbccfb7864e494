# SPDX-License-Identifier: Apache-2.0
"""Who of those that wait for memory is let in first, and how much of it stays for the cache."""

from __future__ import annotations

from collections.abc import Sequence

MOST_PASSES = 50
"""So many requests that came later are let in before a request at most."""
RUNNING_PERCENT = 50
"""So much of the memory is for requests that run, at most, when a prompt has just been lost."""
FADING_TURNS = 16
"""A loss is forgotten when as many blocks as there are have been handed out so many times."""


def cached_first(shares: Sequence[float], passes: Sequence[int], most: int) -> list[int]:
    """Return the order in which requests are let in, as positions in the order of their arrival.

    The smaller the share of its tokens that a request has to compute, the earlier. It is the price
    of letting it in now, for it takes memory from what others hit, against what is lost if its own
    hit is gone later. Those with nothing cached cost alike, whatever their length. Equal ones stay
    in the order of their arrival.

    The promise: however many are let in by this order, no request is passed by more than ``most``
    that came later, those of earlier orders included. Whoever reaches that number is next.

    Args:
        shares: Tokens to compute by all tokens of each request, in the order of arrival.
        passes: How many that came later were let in before each of them. An earlier one has been
            passed at least as often as a later one: who passes the later one passes it as well.
        most: See the promise.
    """
    order: list[int] = []
    is_placed = [False] * len(shares)
    oldest = 0
    for first in sorted(range(len(shares)), key=shares.__getitem__):  # stable
        if is_placed[first]:
            continue
        # All before the oldest are placed, and all others that are placed pass it.
        while passes[oldest] + len(order) - oldest >= most and oldest != first:
            order.append(oldest)
            is_placed[oldest] = True
            while is_placed[oldest]:
                oldest += 1
        order.append(first)
        is_placed[first] = True
        while oldest < len(shares) and is_placed[oldest]:
            oldest += 1
    return order


def cached_share(num_blocks: int, num_handed_out: int) -> int:
    """Return how many of all blocks running requests leave to what is cached.

    It falls evenly from one loss on until the next: so the memory is tried out little by little. If
    it fell at once, many would be let in together, and what they push out would be lost again.

    Args:
        num_handed_out: Blocks that were handed out since a prompt was lost.
    """
    most = num_blocks - num_blocks * RUNNING_PERCENT // 100
    all_turns = FADING_TURNS * num_blocks
    return most * max(all_turns - num_handed_out, 0) // all_turns
