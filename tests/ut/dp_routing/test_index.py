# SPDX-License-Identifier: Apache-2.0
"""The index of all ranks: its messages, and what it finds of a prompt. Names are chosen here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend.dp_routing.index import Cached, CacheIndex
from vllm_ascend.dp_routing.names import names_check, placed_name
from vllm_ascend.dp_routing.news import CacheNews, CacheRules, decode_news, encode_news, pack_names
from vllm_ascend.kv_events.layout import EngineRules, GroupRule

SIZE = 4
PREFIX, TAIL = GroupRule("prefix", SIZE), GroupRule("tail", SIZE, tail_tokens=SIZE)
NAMES = list(range(101, 121))
LENGTH = len(NAMES) * SIZE + 1


def rules(*groups: GroupRule, alignment: int = SIZE):
    engine = EngineRules(len(groups), alignment, SIZE)
    return CacheRules(tuple(groups), engine, names_check(SIZE))


def anew(*groups: GroupRule, start: int = 1, number: int = 1, **kwargs) -> CacheNews:
    return CacheNews(start, number, (), rules(*groups, **kwargs))


def news(number: int, group: int = 0, stored=(), removed=(), start: int = 1) -> CacheNews:
    changes = ((group, pack_names(stored), pack_names(removed)),)
    return decode_news(encode_news(CacheNews(start, number, changes)))


def hits(index: CacheIndex, num_tokens: int = LENGTH, names=NAMES) -> list[int]:
    return [cached.hit for cached in index.look_up(names, num_tokens)]


def test_each_rank_has_its_own_hit():
    index = CacheIndex(3)
    for rank, held in enumerate((NAMES[:3], NAMES[:7], NAMES[2:])):
        index.apply(rank, anew(PREFIX))
        index.apply(rank, news(2, stored=held))
    assert hits(index) == [12, 28, 0]
    assert hits(index, num_tokens=12) == [8, 8, 0], "the last token is always computed"
    index.apply(1, news(3, removed=NAMES[1:2]))
    assert hits(index) == [12, 4, 0]
    assert index.num_names == len(NAMES)


def test_a_hit_ends_where_the_tail_is():
    index = CacheIndex(2)
    for rank in (0, 1):
        index.apply(rank, anew(PREFIX, TAIL))
        index.apply(rank, news(2, stored=NAMES[:9]))
    index.apply(0, news(3, group=1, stored=[NAMES[4], NAMES[2]]))
    assert index.look_up(NAMES, LENGTH) == [Cached(20, 36), Cached(0, 36)]


def test_units_inside_a_granule_have_names_of_their_own():
    fine = GroupRule("tail", 2, tail_tokens=3)
    index = CacheIndex(1)
    index.apply(0, anew(PREFIX, fine))
    index.apply(0, news(2, stored=NAMES[:2]))
    index.apply(0, news(3, group=1, stored=[NAMES[1]]))
    assert hits(index) == [0]
    index.apply(0, news(4, group=1, stored=[placed_name(NAMES[1], 1)]))
    assert hits(index) == [8]


def test_a_draft_groups_block_counts_with_what_followed_it():
    draft = GroupRule("prefix", SIZE, is_draft=True)
    index = CacheIndex(1)
    index.apply(0, anew(draft))
    index.apply(0, news(2, stored=NAMES[:3]))
    index.apply(0, news(3, group=1, stored=NAMES[1:4]))
    assert hits(index) == [12]
    assert hits(index, names=NAMES[:3]) == [8], "nothing is known to follow the last granule"
    assert hits(index, num_tokens=3, names=[]) == [0]


def lost(index: CacheIndex) -> None:
    """One message of rank 0 never arrives."""
    index.apply(0, news(4, stored=NAMES[3:4]))


def restarted(index: CacheIndex) -> None:
    """Rank 0 was started anew, and what it said first was lost."""
    index.apply(0, news(2, stored=NAMES[:1], start=2))


@pytest.mark.parametrize("fault", [lost, restarted])
def test_a_rank_with_a_gap_is_unknown_until_it_tells_all(fault):
    index = CacheIndex(2)
    for rank in (0, 1):
        index.apply(rank, anew(PREFIX))
        index.apply(rank, news(2, stored=NAMES[:3]))
    fault(index)
    assert [index.is_known(0), index.is_known(1)] == [False, True]
    assert hits(index) == [0, 12]
    index.apply(0, news(5, stored=NAMES[:9]))
    assert hits(index) == [0, 12], "a gap is not filled by what follows it"
    index.apply(0, anew(PREFIX, start=2, number=9))
    index.apply(0, news(10, stored=NAMES[:2], start=2))
    assert hits(index) == [8, 12]


def test_what_is_said_twice_changes_nothing():
    index = CacheIndex(1)
    index.apply(0, anew(PREFIX))
    index.apply(0, news(2, stored=NAMES[:3]))
    index.apply(0, news(3, removed=NAMES[2:3]))
    assert list(index.apply(0, news(2, stored=NAMES[:3]))) == []
    assert index.is_known(0) and hits(index) == [8]


def test_a_cleared_cache_has_nothing():
    index = CacheIndex(1)
    index.apply(0, anew(PREFIX))
    index.apply(0, news(2, stored=NAMES))
    index.apply(0, anew(PREFIX, number=3))
    assert index.is_known(0) and hits(index) == [0] and not index.num_names


def test_a_rank_that_names_prompts_otherwise_is_unknown():
    index = CacheIndex(1)
    odd = rules(PREFIX)
    index.apply(0, CacheNews(1, 1, (), CacheRules(odd.groups, odd.engine, odd.check + 1)))
    assert not index.is_known(0) and hits(index) == [0]


def test_a_group_without_a_rule_is_never_hit():
    index = CacheIndex(1)
    index.apply(0, anew(PREFIX, GroupRule("other", SIZE)))
    index.apply(0, news(2, stored=NAMES))
    assert hits(index) == [0]


_held = st.lists(st.sets(st.integers(0, 19)), min_size=1, max_size=4)


@given(_held, _held, st.integers(1, 2), st.integers(1, LENGTH + SIZE))
def test_one_walk_finds_what_a_search_per_rank_does(prefixes, tails, alignment, num_tokens):
    """Whatever the ranks hold, in whatever order it is evicted."""
    num_ranks = min(len(prefixes), len(tails))
    index = CacheIndex(num_ranks)
    step = alignment * SIZE
    for rank in range(num_ranks):
        index.apply(rank, anew(PREFIX, TAIL, alignment=step))
        index.apply(rank, news(2, 0, [NAMES[i] for i in prefixes[rank]]))
        index.apply(rank, news(3, 1, [NAMES[i] for i in tails[rank]]))

    def search(rank: int) -> int:
        limit = min(num_tokens - 1, len(NAMES) * SIZE)
        boundaries = range(limit // step * step, 0, -step)
        return next(
            (
                end
                for end in boundaries
                if set(range(end // SIZE)) <= prefixes[rank] and end // SIZE - 1 in tails[rank]
            ),
            0,
        )

    assert hits(index, num_tokens) == [search(rank) for rank in range(num_ranks)]
