# SPDX-License-Identifier: Apache-2.0
"""What a tier adds to hits, from chosen names; and what that means for the choice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ut.dp_routing.test_index import NAMES, PREFIX, SIZE, anew, rules
from vllm_ascend.dp_routing.choice import COPY_WEIGHT, DISK_WEIGHT, LIVE_TOKENS
from vllm_ascend.dp_routing.news import (
    TIER_ROWS,
    TIER_TAILS,
    CacheNews,
    CacheRules,
    TierRules,
    decode_news,
    encode_news,
    pack_names,
)
from vllm_ascend.dp_routing.router import Prompt, Router
from vllm_ascend.dp_routing.tier_reach import ends_with_tier

TIER = TierRules(2 * SIZE, 0, 0, has_tails=True, is_shared=False)
LENGTH = len(NAMES) * SIZE + 1


def ends(tier: TierRules, rows: dict, tails: dict, hits=(0, 0), num_tokens: int = LENGTH):
    def masks(stored: dict[int, int]) -> dict[int, int]:
        return {NAMES[end // SIZE - 1]: mask for end, mask in stored.items()}

    return ends_with_tier(tier, masks(rows), masks(tails), NAMES, SIZE, num_tokens, hits)


def test_a_hit_goes_on_with_units_and_ends_at_a_tail():
    rows = {8: 1, 16: 3, 24: 3, 32: 1, 48: 3}
    assert ends(TIER, rows, {16: 3, 32: 1, 48: 1}) == [32, 0]
    assert ends(TIER, rows, {16: 3, 24: 2}, hits=[12, 12]) == [16, 24]
    assert ends(TIER, rows, {16: 3}, hits=[20, 12]) == [20, 16], "never shorter"
    assert ends(TIER, rows, {32: 1}, num_tokens=32) == [0, 0], "the last token is computed"


def test_what_others_have_stored_counts_where_it_is_shared():
    shared = TierRules(2 * SIZE, 0, 0, has_tails=True, is_shared=True)
    assert ends(shared, {8: 1, 16: 2}, {16: 4}) == [16, 16]


def test_drafts_look_ahead():
    ahead = TierRules(2 * SIZE, 2 * SIZE, 2 * SIZE, has_tails=True, is_shared=False)
    assert ends(ahead, {16: 1, 24: 1}, {24: 1}) == [16, 0]
    everything = dict.fromkeys(range(8, LENGTH, 8), 1)
    assert ends(ahead, everything, everything) == [72, 0], "nobody knows what follows the end"


_masks = st.sampled_from([7, 7, 7, 6, 3, 5, 1, 0])
_stored = st.lists(_masks, min_size=10, max_size=10)


@given(
    _stored,
    _stored,
    st.lists(st.integers(0, 19), min_size=3, max_size=3),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    st.integers(1, LENGTH + SIZE),
)
def test_one_walk_finds_what_a_search_per_rank_does(rows, tails, granules, flags, num_tokens):
    """Whatever the ranks have stored and hit, named ahead or not."""
    unit, (rows_ahead, tails_ahead, has_tails, is_shared) = 2 * SIZE, flags
    tier = TierRules(unit, rows_ahead * unit, tails_ahead * unit, has_tails, is_shared)
    hits = [min(granule * SIZE, num_tokens - 1) for granule in granules]
    # What ends at a unit is called by the granule that ends there, or a unit later.
    named_rows = dict(enumerate(rows[: 10 - rows_ahead]))
    named_tails = dict(enumerate(tails[: 10 - tails_ahead]))

    def can_load(stored: dict[int, int], i: int, rank: int) -> bool:
        mask = stored.get(i, 0)
        return bool(mask if is_shared else mask >> rank & 1)

    def search(rank: int) -> int:
        for end in range((num_tokens - 1) // unit, hits[rank] // unit, -1):
            units = range(hits[rank] // unit, end)
            ends = not has_tails or can_load(named_tails, end - 1, rank)
            if ends and all(can_load(named_rows, i, rank) for i in units):
                return max(end * unit, hits[rank])
        return hits[rank]

    found = ends(
        tier,
        {(i + 1 + rows_ahead) * unit: mask for i, mask in named_rows.items()},
        {(i + 1 + tails_ahead) * unit: mask for i, mask in named_tails.items()},
        hits,
        num_tokens,
    )
    assert found == [search(rank) for rank in range(3)]


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_a_tier_holds_costs_less_than_to_compute_it(is_shared):
    """Rank 1 has the prompt in its tier alone; rank 0 has less to do."""
    router = Router(3)
    plain = rules(PREFIX)
    tier = TierRules(SIZE, 0, 0, has_tails=False, is_shared=is_shared)
    told = CacheNews(1, 1, (), CacheRules(plain.groups, plain.engine, plain.check, tier))
    names = list(range(101, 2101))
    for rank in range(3):
        router.hear(rank, decode_news(encode_news(told)))
    assert not router.hear(1, CacheNews(1, 2, ((TIER_ROWS, pack_names(names), b""),)))
    prompt, counts = Prompt(names, len(names) * SIZE + 1), [[0, 0], [0, 2], [0, 1]]
    assert router.choose("a", prompt, counts) == (0 if is_shared else 1)
    rank = 0 if is_shared else 1
    assert router.sent.left_tokens[rank] == 1, "the rest is loaded"
    assert not router._predicted, "a load may replace the end of the rank's own hit"
    assert router.hear(1, CacheNews(1, 9, ((TIER_TAILS, pack_names(names), b""),)))
    router.finished("a")
    assert router.choose("b", prompt, counts) == 0, "what the rank's tier holds is unknown now"


def test_a_rank_that_has_it_in_its_cache_is_cheaper_than_one_that_loads():
    router = Router(2)
    plain = rules(PREFIX)
    tier = TierRules(SIZE, 0, 0, has_tails=False, is_shared=True)
    names = list(range(101, 2101))
    for rank in range(2):
        router.hear(rank, CacheNews(1, 1, (), CacheRules(*_fields(plain), tier)))
    router.hear(1, CacheNews(1, 2, ((0, pack_names(names), b""), (-1, pack_names(names), b""))))
    prompt = Prompt(names, len(names) * SIZE + 1)
    assert router.choose("a", prompt, [[0, 0], [0, 0]]) == 1
    assert router.stats.chosen[1, "cache"] == 1
    assert router.choose("b", prompt, [[0, 0], [0, 9]]) == 0, "a load costs little"


def test_what_others_have_on_a_shared_disk_costs_less_than_computing_it_and_more_than_ones_own():
    router = Router(3)
    tier = TierRules(SIZE, 0, 0, has_tails=False, is_shared=False, shares_disk=True)
    names = list(range(101, 2101))
    for rank in range(3):
        router.hear(rank, CacheNews(1, 1, (), CacheRules(*_fields(rules(PREFIX)), tier)))
    router.hear(1, CacheNews(1, 2, ((-1, pack_names(names), b""),)))
    tokens = len(names) * SIZE
    prompt = Prompt(names, tokens + 1)
    assert router.choose("a", prompt, [[0, 0]] * 3) == 1, "it stays"
    router.finished("a")
    # So many live requests more on its rank are worth a load from the disk, not computing it.
    many = (DISK_WEIGHT + 1) * tokens // LIVE_TOKENS
    assert LIVE_TOKENS * many < COPY_WEIGHT * tokens
    rank = router.choose("b", prompt, [[0, 0], [0, many], [0, 0]])
    assert rank != 1 and router.sent.left_tokens[rank] == 1, "the rest is loaded"


def _fields(of: CacheRules) -> tuple:
    return of.groups, of.engine, of.check


def test_without_a_tier_hits_are_as_they_are():
    router = Router(2)
    router.hear(0, anew(PREFIX))
    assert router.index.with_tier(NAMES, LENGTH, [4, 0]) == [4, 0]
