# SPDX-License-Identifier: Apache-2.0
"""Tells the front end what the tier of a data-parallel rank holds, beside what its cache has."""

from __future__ import annotations

from vllm.v1.request import Request

from vllm_ascend.core.events.cache_news import CacheNewsQueue
from vllm_ascend.dp_routing.news import TIER_ROWS, TIER_TAILS, TierRules
from vllm_ascend.tier.layout import TAIL, TierLayout


class TierTeller:
    """Stands between a scheduler's half and the news of its rank."""

    def __init__(
        self, layout: TierLayout, news: CacheNewsQueue, *, is_shared: bool, shares_disk: bool
    ) -> None:
        """Describe the tier, before the first step.

        Args:
            layout: What objects hold.
            news: Of this rank.
            is_shared: Other ranks load what this one has stored.
            shares_disk: They do so from a disk.
        """
        self._news = news
        self._ahead = {
            TIER_ROWS: layout.unit * layout.rows_look_ahead,
            TIER_TAILS: layout.unit * layout.tail_looks_ahead,
        }
        self._hash_tokens = layout.hash_tokens
        ahead = self._ahead[TIER_ROWS], self._ahead[TIER_TAILS]
        tier = TierRules(layout.unit, *ahead, bool(layout.tails), is_shared, shares_disk)
        news.describe_tier(tier)

    def found(self, key: bytes, request: Request, end: int) -> None:
        """Tell of an object that can be loaded now.

        Args:
            key: The object.
            request: Whose rows or tail it holds.
            end: Where these end, in tokens.
        """
        index = TIER_TAILS if key[:1] == TAIL else TIER_ROWS
        granule = (end + self._ahead[index]) // self._hash_tokens - 1
        self._news.store_in_tier(key, index, request, granule, key[1:])
