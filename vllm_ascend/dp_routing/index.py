# SPDX-License-Identifier: Apache-2.0
"""What all data-parallel ranks have cached, in one index: a name, and one bit per rank that has it.

One walk along a prompt's names answers for all ranks at once. It follows the rules of the engine's
own look-up, as ``prefix_index`` does for one engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from vllm_ascend.dp_routing.names import names_check, placed_name
from vllm_ascend.dp_routing.news import (
    TIER_ROWS,
    TIER_TAILS,
    CacheNews,
    CacheRules,
    TierRules,
    unpack_names,
)
from vllm_ascend.dp_routing.tier_reach import bits, ends_with_tier
from vllm_ascend.kv_events.layout import GroupRule

_Masks = defaultdict[int, dict[int, int]]


class Cached(NamedTuple):
    """What one rank has of a prompt, in tokens.

    Attributes:
        hit: What it would take from its cache, if the prompt were the next it schedules.
        matched: Where a hit could end at most if all tails were cached.
    """

    hit: int
    matched: int


@dataclass
class _Rank:
    """What is known of one rank.

    Attributes:
        start, number: Of its last message; see :class:`CacheNews`.
        is_known: No message of it is missing since it last told everything.
    """

    start: int = 0
    number: int = 0
    is_known: bool = False


class CacheIndex:
    """What every rank has cached, as far as its messages tell."""

    def __init__(self, num_ranks: int) -> None:
        self._ranks = [_Rank() for _ in range(num_ranks)]
        # Index in the events -> name -> the ranks that have it
        self._masks: _Masks = defaultdict(dict)
        self.rules: CacheRules | None = None

    @property
    def hash_tokens(self) -> int:
        """Tokens per granule; 0 until some rank has told."""
        return self.rules.engine.hash_tokens if self.rules else 0

    @property
    def alignment(self) -> int:
        """Hits are multiples of this, in tokens; 0 until some rank has told."""
        return self.rules.engine.alignment if self.rules else 0

    @property
    def num_names(self) -> int:
        """Distinct names over all groups: what the index's memory is in proportion to."""
        return sum(map(len, self._masks.values()))

    def is_known(self, rank: int) -> bool:
        """Whether a rank's cache is known without a gap."""
        return self._ranks[rank].is_known

    # Messages

    def apply(self, rank: int, news: CacheNews) -> Sequence[int]:
        """Follow a rank's next message. One that does not follow on makes the rank unknown.

        Returns:
            The names of granules that the rank holds now, as far as they are new.
        """
        known = self._ranks[rank]
        if news.rules is not None:
            self._begin_anew(rank, news.rules)
        elif news.start != known.start or news.number != known.number + 1:
            if known.is_known and news.start == known.start and news.number <= known.number:
                return ()  # said twice: all of it is known
            self.forget(rank)
        known.start, known.number = news.start, news.number
        return self._change(rank, news) if known.is_known else ()

    def forget(self, rank: int) -> None:
        """Drop everything that a rank has told; it is unknown until it tells all again."""
        self._ranks[rank].is_known = False
        keep = ~(1 << rank)
        for index, masks in self._masks.items():
            left = ((name, mask & keep) for name, mask in masks.items())
            self._masks[index] = {name: mask for name, mask in left if mask}

    def _begin_anew(self, rank: int, rules: CacheRules) -> None:
        self.forget(rank)
        if rules.check != names_check(rules.engine.hash_tokens):
            return  # another Python names prompts in another way
        if self.rules is None or not any(known.is_known for known in self._ranks):
            self.rules = rules
        # Ranks of one engine are configured alike; one that is not cannot be looked up with it.
        self._ranks[rank].is_known = self.rules == rules

    def _change(self, rank: int, news: CacheNews) -> Sequence[int]:
        assert self.rules is not None
        bit, granules = 1 << rank, self._granule_group()
        told: Sequence[int] = ()
        for index, packed_stored, packed_removed in news.changes:
            masks, stored = self._masks[index], unpack_names(packed_stored)
            for name in stored:
                masks[name] = masks.get(name, 0) | bit
            for name in unpack_names(packed_removed):
                mask = masks.get(name, 0) & ~bit
                if mask:
                    masks[name] = mask
                else:
                    masks.pop(name, None)
            if index == granules:
                told = stored
        return told

    def _granule_group(self) -> int | None:
        """Return the group that tells of every granule of a prefix."""
        assert self.rules is not None
        rules = enumerate(self.rules.groups)
        return next((group for group, rule in rules if rule.rule == "prefix"), None)

    # Look-up

    def look_up(self, names: Sequence[int], num_tokens: int) -> list[Cached]:
        """Return what every rank has of a prompt; nothing of those that are unknown.

        Args:
            names: Of the prompt's whole granules.
            num_tokens: The prompt's. Its last token is always computed.
        """
        ranks = sum(1 << rank for rank, known in enumerate(self._ranks) if known.is_known)
        if self.rules is None or any(rule.rule == "other" for rule in self.rules.groups):
            ranks = 0
        walk = _Walk(self._masks, self.rules, names) if ranks and self.rules else None
        nothing = [0] * len(self._ranks)
        matched = walk.matches(ranks, num_tokens - 1, nothing) if walk else nothing
        hits = walk.boundaries(matched) if walk else nothing
        return [Cached(*cached) for cached in zip(hits, matched, strict=True)]

    def with_tier(self, names: Sequence[int], num_tokens: int, hits: Sequence[int]) -> list[int]:
        """Return, by rank, where a prompt's hit ends once the rank has loaded what its tier has.

        Args:
            names: As for :meth:`look_up`.
            num_tokens: As for :meth:`look_up`.
            hits: By rank, in tokens. They are the answer where there is no tier.
        """
        if self.rules is None or self.rules.tier is None:
            return list(hits)
        return self._with(self.rules.tier, names, num_tokens, hits)

    def with_disk(self, names: Sequence[int], num_tokens: int, hits: Sequence[int]) -> list[int]:
        """Return, by rank, where the hit ends if it also loads what other ranks have on the disk.

        Args:
            names: As for :meth:`look_up`.
            num_tokens: As for :meth:`look_up`.
            hits: By rank, with its own tier, in tokens. They are the answer without such a disk.
        """
        if self.rules is None or self.rules.tier is None or not self.rules.tier.shares_disk:
            return list(hits)
        shared = msgspec.structs.replace(self.rules.tier, is_shared=True)
        return self._with(shared, names, num_tokens, hits)

    def _with(
        self, tier: TierRules, names: Sequence[int], num_tokens: int, hits: Sequence[int]
    ) -> list[int]:
        stored = self._masks[TIER_ROWS], self._masks[TIER_TAILS]
        return ends_with_tier(tier, *stored, names, self.hash_tokens, num_tokens, hits)


class _Walk:
    """One prompt's look-up over all ranks."""

    def __init__(self, masks: _Masks, rules: CacheRules, names: Sequence[int]) -> None:
        self._masks, self._engine, self._names = masks, rules.engine, names
        self._groups = rules.groups

    def matches(self, ranks: int, limit: int, nothing: list[int]) -> list[int]:
        """Return how many tokens of the prompt all groups hold that keep whole prefixes.

        Args:
            ranks: The ranks in question, as bits.
            limit: Tokens at most.
            nothing: A zero per rank.
        """
        matched, size, names = list(nothing), self._engine.hash_tokens, self._names
        prefix = [group for group, rule in enumerate(self._groups) if rule.rule == "prefix"]
        holders = [self._masks[group] for group in prefix]
        drafts = [self._behind(group) for group in prefix if self._groups[group].is_draft]
        # With drafts, what follows the last granule must be known as well.
        end = max(min(limit // size, len(names) - bool(drafts)), 0)
        granule = 0
        while ranks and granule < end:
            having = ranks
            for masks in holders:
                having &= masks.get(names[granule], 0)
            for masks in drafts:
                having &= masks.get(names[granule + 1], 0)
            if having != ranks:
                for rank in bits(ranks & ~having):
                    matched[rank] = granule * size
                ranks = having
            granule += 1
        for rank in bits(ranks):
            matched[rank] = end * size
        return matched

    def boundaries(self, matched: Sequence[int]) -> list[int]:
        """Return, by rank, where the hit ends if so many tokens are held by prefix groups."""
        found, step = [0] * len(matched), self._engine.alignment
        starts = sorted((limit // step * step, rank) for rank, limit in enumerate(matched))
        boundary, open_ranks = starts[-1][0], 0
        while boundary > 0:
            while starts and starts[-1][0] >= boundary:
                open_ranks |= 1 << starts.pop()[1]
            having = open_ranks and self._with_tails(boundary, open_ranks)
            for rank in bits(having):
                found[rank] = boundary
            open_ranks &= ~having
            if open_ranks:
                boundary -= step
            elif starts:
                boundary = starts[-1][0]
            else:
                break
        return found

    def _with_tails(self, boundary: int, ranks: int) -> int:
        """Return which of the ranks have all that a hit needs of windowed groups at a boundary."""
        for group, rule in enumerate(self._groups):
            if rule.rule == "tail":
                for masks, name in self._units(group, rule, boundary):
                    ranks &= masks.get(name, 0)
                    if not ranks:
                        return 0
        return ranks

    def _units(
        self, group: int, rule: GroupRule, boundary: int
    ) -> Iterator[tuple[dict[int, int], int]]:
        """Yield where the units of a boundary's tail are looked for, and by what names.

        The last one comes first: it is the one that most boundaries lack.
        """
        size, hash_tokens, names = rule.unit_tokens, self._engine.hash_tokens, self._names
        first = max(boundary - rule.tail_tokens, 0) // size * size
        for end in range(boundary // size * size, first, -size):
            granule, inside = divmod(end, hash_tokens)
            if inside:
                yield self._masks[group], placed_name(names[granule], inside // size)
                continue
            yield self._masks[group], names[granule - 1]
            if rule.is_draft:
                yield self._behind(group), names[granule] if granule < len(names) else 0

    def _behind(self, group: int) -> dict[int, int]:
        """Return the names of granules that followed a cached block of a draft group."""
        return self._masks[group + self._engine.num_groups]
