# SPDX-License-Identifier: Apache-2.0
"""Where hits end with what a tier below the ranks' caches holds; the tier's own look-up agrees.

One walk along a prompt's units answers for all ranks at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vllm_ascend.dp_routing.news import TierRules


def ends_with_tier(
    tier: TierRules,
    rows: Mapping[int, int],
    tails: Mapping[int, int],
    names: Sequence[int],
    hash_tokens: int,
    num_tokens: int,
    hits: Sequence[int],
) -> list[int]:
    """Return, by rank, where the hit ends once it has loaded what it can; in tokens.

    Args:
        tier: How the names are to be read.
        rows: Name of rows -> the ranks that have stored them, as bits.
        tails: The same of tails.
        names: Of the prompt's whole granules.
        hash_tokens: Tokens per granule.
        num_tokens: The prompt's. Its last token is always computed.
        hits: By rank, what its own cache has.
    """
    unit = tier.unit_tokens
    step, limit = unit // hash_tokens, (num_tokens - 1) // unit

    def by_unit(stored: Mapping[int, int], ahead: int) -> _Holders:
        unit_names = names[step - 1 + ahead // hash_tokens :: step][:limit]
        return _Holders(stored, unit_names, is_shared=tier.is_shared)

    starts = [hit // unit for hit in hits]
    ends = _ends_of_rows(by_unit(rows, tier.rows_ahead), starts)
    if tier.has_tails:
        ends = _last_tails(by_unit(tails, tier.tails_ahead), starts, ends)
    return [max(hit, end * unit) for hit, end in zip(hits, ends, strict=True)]


class _Holders:
    """Which ranks can load what belongs to a unit of the prompt, as bits."""

    def __init__(
        self, masks: Mapping[int, int], unit_names: Sequence[int], *, is_shared: bool
    ) -> None:
        self._masks, self._names, self._is_shared = masks, unit_names, is_shared

    def __call__(self, unit: int) -> int:
        if unit >= len(self._names):
            return 0  # it cannot be named
        mask = self._masks.get(self._names[unit], 0)
        return -1 if mask and self._is_shared else mask


def _ends_of_rows(holders: _Holders, starts: Sequence[int]) -> list[int]:
    """Return, by rank, the first unit from its start on whose rows it cannot load."""
    ends = list(starts)
    later = sorted(((start, rank) for rank, start in enumerate(starts)), reverse=True)
    unit = going = 0
    while going or later:
        if not going:
            unit = later[-1][0]
        while later and later[-1][0] == unit:
            going |= 1 << later.pop()[1]
        having = holders(unit)
        for rank in bits(going & ~having):
            ends[rank] = unit
        going &= having
        unit += 1
    return ends


def _last_tails(holders: _Holders, starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return, by rank, the last boundary up to its end with a tail; 0: none behind its start."""
    found, least = [0] * len(ends), min(starts)
    later = sorted((end, rank) for rank, end in enumerate(ends) if end > starts[rank])
    boundary = going = 0
    while later or (going and boundary > least):
        if not going:
            boundary = later[-1][0]
        while later and later[-1][0] == boundary:
            going |= 1 << later.pop()[1]
        having = holders(boundary - 1) & going
        for rank in bits(having):
            found[rank] = boundary
        going ^= having
        boundary -= 1
    return found


def bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit
