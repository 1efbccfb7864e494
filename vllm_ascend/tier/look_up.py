# SPDX-License-Identifier: Apache-2.0
"""The longest hit in a store, in few calls, whatever the length of the prompt.

A prompt of a million tokens has 8,192 units. The end of its rows is found by bisection, because
rows that are there without those before them are of no use; the last tail before that end is asked
for in batches; then all rows of the hit are asked for once, so that no gap is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

Contains = Callable[[Sequence[bytes]], Sequence[bool]]
"""Keys -> whether each is in the store, in one call."""
KeyOf = Callable[[int], bytes | None]
"""Place of a unit, or a boundary in units -> its key, if it can be named."""
KeysOf = Callable[[int, int], Sequence[bytes]]

# How many places a call asks about: four calls find one of 8,192.
_FAN = 16
_FIRST_TAILS = 16


class StoredHit(NamedTuple):
    """What a store has of a prompt, in units from its start.

    Attributes:
        end: Where the hit ends; 0: there is none.
        rows_end: How far its rows are stored.
    """

    end: int
    rows_end: int


def longest_hit(
    contains: Contains,
    row_key: KeyOf,
    tail_key: KeyOf | None,
    first: int,
    limit: int,
    row_keys: KeysOf | None = None,
) -> StoredHit:
    """Return the longest hit of at most ``limit`` units that ends behind the ``first``.

    Args:
        row_keys: [start, end) of units -> their keys, all of which can be named.
        tail_key: ``None``: the model needs no tails.
        first: So many units are here already, and need not be in the store.
    """
    rows_end = end_of_rows(contains, row_key, first, limit)
    bound = rows_end
    while bound > first:
        end = bound if tail_key is None else _last_tail(contains, tail_key, first, bound)
        if end <= first:
            break
        rows = row_keys(first, end) if row_keys else [row_key(i) for i in range(first, end)]
        gap = first + _first_gap(_ask(contains, rows))
        if gap == end:
            return StoredHit(end, rows_end)
        rows_end = bound = gap
    return StoredHit(0, rows_end)


def end_of_rows(contains: Contains, row_key: KeyOf, first: int, limit: int) -> int:
    """Return the first unit in ``[first, limit)`` whose rows are missing, ``limit`` if none are.

    Rows behind missing ones are not looked for: with gaps the answer is one of their starts.
    """
    low, high = first, limit  # rows in front of low are there, those of high are not, or unknown
    while low < high:
        step = -(-(high - low) // _FAN)
        places = list(range(low, high, step))
        found = _ask(contains, [row_key(place) for place in places])
        missing = next((i for i, there in enumerate(found) if not there), None)
        if missing is None:
            if step == 1:
                return high
            low = places[-1] + 1
        elif missing == 0:
            return low
        else:
            low, high = places[missing - 1] + 1, places[missing]
    return low


def _last_tail(contains: Contains, tail_key: KeyOf, first: int, bound: int) -> int:
    """Return the last boundary in ``(first, bound]`` with a tail; 0 if there is none."""
    count = _FIRST_TAILS
    while bound > first:
        places = list(range(bound, max(bound - count, first), -1))
        found = _ask(contains, [tail_key(place) for place in places])
        for place, there in zip(places, found, strict=True):
            if there:
                return place
        bound, count = places[-1] - 1, count * _FAN
    return 0


def _first_gap(found: Sequence[bool]) -> int:
    return next((place for place, there in enumerate(found) if not there), len(found))


def _ask(contains: Contains, keys: Sequence[bytes | None]) -> list[bool]:
    known = [key for key in keys if key is not None]
    answers = iter(contains(known)) if known else iter(())
    return [key is not None and bool(next(answers)) for key in keys]
