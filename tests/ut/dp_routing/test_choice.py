# SPDX-License-Identifier: Apache-2.0
"""Properties of the choice, and what it means for ranks under load."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ascend.dp_routing.choice import (
    COPY_WEIGHT,
    LIVE_TOKENS,
    PATIENCE_TOKENS,
    RankLoad,
    choose_rank,
    cost,
)

_loads = st.lists(
    st.builds(
        RankLoad,
        st.integers(0, 1 << 20),
        st.integers(0, 1 << 22),
        st.integers(0, 512),
        st.integers(0, 1 << 24),
    ),
    min_size=1,
    max_size=16,
)


_sharers = st.integers(0, 64)


@settings(deadline=None)
@given(_loads, _sharers, st.integers(0, 1 << 40))
def test_nobody_pays_more_than_the_cheapest_rank_costs(loads, sharers, tie):
    """So a rank with twice the load is taken only where its cache is worth it."""
    chosen = choose_rank(loads, sharers, tie)
    least = min(load.queued_tokens for load in loads)
    assert cost(loads[chosen], sharers, least) == min(cost(load, sharers, least) for load in loads)


@settings(deadline=None)
@given(_loads, _sharers, st.data())
def test_a_rank_gets_no_cheaper_by_work(loads, sharers, data):
    """More of anything on the rank that was not chosen never makes it the choice."""
    chosen = choose_rank(loads, sharers, 0)
    other = data.draw(st.integers(0, len(loads) - 1))
    if other == chosen:
        return
    more = data.draw(st.sampled_from(RankLoad._fields))
    heavier = [*loads]
    heavier[other] = loads[other]._replace(**{more: getattr(loads[other], more) + 1000})
    assert choose_rank(heavier, sharers, 0) != other


@settings(deadline=None)
@given(st.integers(1, 16), st.integers(0, 1 << 20))
def test_ties_are_taken_in_turn(num_ranks, first):
    loads = [RankLoad(0, 50, 3, 0)] * num_ranks
    taken = Counter(choose_rank(loads, 0, first + i) for i in range(num_ranks))
    assert taken == dict.fromkeys(range(num_ranks), 1)


@settings(deadline=None)
@given(st.integers(2, 8), st.lists(st.integers(1, 20_000), min_size=40, max_size=80))
def test_no_rank_starves_of_cold_prompts(num_ranks, prompts):
    """Ranks that compute nothing meanwhile: they differ by the price of one prompt at most."""
    queued, live = [0] * num_ranks, [0] * num_ranks
    for tie, tokens in enumerate(prompts):
        loads = [RankLoad(0, *of, 0) for of in zip(queued, live, strict=True)]
        rank = choose_rank(loads, 0, tie)
        queued[rank] += tokens
        live[rank] += 1
    costs = [tokens + LIVE_TOKENS * n for tokens, n in zip(queued, live, strict=True)]
    assert max(costs) - min(costs) <= max(prompts) + LIVE_TOKENS
    assert min(live) > 0


def test_a_hot_prefix_spreads_over_all_ranks():
    """All prompts begin with 7,000 tokens; requests live long, as with long answers."""
    has_prefix, live = [False] * 8, [0] * 8
    for number in range(240):
        loads = [
            RankLoad(0 if has or not any(has_prefix) else 7000, 0, n, 0)
            for has, n in zip(has_prefix, live, strict=True)
        ]
        rank = choose_rank(loads, number, number)
        has_prefix[rank] = True
        live[rank] += 1
    assert all(has_prefix) and max(live) <= min(live) + 2


@settings(deadline=None)
@given(st.integers(1000, 200_000), st.integers(0, 8))
def test_a_session_stays_unless_its_rank_is_far_behind(hit, more_live):
    """Nobody shares its prefix, so a few requests more on its rank do not drive it away."""
    loads = [RankLoad(0, 0, more_live, 0), RankLoad(hit, 0, 0, 0)]
    assert choose_rank(loads, 0, 0) == 0
    queued = min(COPY_WEIGHT * hit, PATIENCE_TOKENS + hit) + 1
    assert choose_rank([RankLoad(0, queued, 0, 0), loads[1]], 0, 0) == 1


@settings(deadline=None)
@given(st.integers(1, 1 << 20), st.integers(0, 1 << 22), st.integers(0, 1 << 22))
def test_nobody_waits_much_longer_than_it_takes_to_compute_a_prefix_anew(prefix, queued, least):
    """One rank has the prefix, another one less to do."""
    loads = [RankLoad(0, least + queued, 0, 0), RankLoad(prefix, least, 0, 0)]
    waits_more = choose_rank(loads, 0, 0) == 0
    assert not (waits_more and queued > prefix + PATIENCE_TOKENS)
    assert waits_more or queued > min(COPY_WEIGHT * prefix, PATIENCE_TOKENS)


@pytest.mark.parametrize("num_turns", [1, 8, 64])
def test_long_sessions_that_met_on_one_rank_use_the_idle_ones(num_turns):
    """Each has 100,000 tokens there, and comes with 50,000 more; all at once, nobody shares."""
    prefix, own, queued = 100_000, 50_000, [0, 0, 0, 0]
    for turn in range(num_turns):
        loads = [RankLoad(prefix * bool(rank), tokens, 0, 0) for rank, tokens in enumerate(queued)]
        rank = choose_rank(loads, 0, turn)
        queued[rank] += own + loads[rank].copied_tokens
    # Computed in turn where the prefixes are, or spread evenly without any of them.
    stay, spread = num_turns * own, num_turns * (own + prefix) / len(queued)
    assert max(queued) <= min(stay, spread + PATIENCE_TOKENS + own + prefix)


def test_there_must_be_a_rank():
    with pytest.raises(ValueError, match="no rank"):
        choose_rank([], 0, 0)
