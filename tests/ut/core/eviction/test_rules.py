# SPDX-License-Identifier: Apache-2.0
"""Rules and queues against models that are too slow to serve."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ascend.core.eviction.block_classes import (
    NUM_QUEUES,
    BlockClass,
    PromptLengths,
    is_mostly_hit,
    is_returning,
    queues_of,
)
from vllm_ascend.core.eviction.class_queues import ClassQueues
from vllm_ascend.core.eviction.hazard_queues import HazardQueues
from vllm_ascend.core.eviction.learned_rule import LearnedRule
from vllm_ascend.core.eviction.life_table import AgeBins, LifeTable, gittins_indices
from vllm_ascend.core.eviction.name_cache import NameCache
from vllm_ascend.core.eviction.rules import (
    EMPTY,
    OVERFLOW_QUEUES,
    RETURNING_QUEUES,
    Lru,
    ProtectReturning,
    Waiting,
)

PROMPTS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=60
)
RESTS = (BlockClass.LONG, BlockClass.NEW, BlockClass.RETURNING)
NUM_BINS = len(HazardQueues(4, 40).bins)
NUM_COUNTS = 2 * NUM_QUEUES * NUM_BINS
RULES = [Lru(), ProtectReturning(), HazardQueues(2, 100)]


def names_of(topic: int, shared: int, turn: int) -> list[tuple]:
    """A prompt of a topic: prefix blocks that all have, and two of the turn's own."""
    return [(topic, i) for i in range(shared)] + [(topic, shared, turn, i) for i in range(2)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@given(
    heads=st.lists(
        st.one_of(st.just(EMPTY), st.integers(0, 90)), min_size=NUM_QUEUES, max_size=NUM_QUEUES
    ),
    sizes=st.lists(st.integers(1, 9), min_size=NUM_QUEUES, max_size=NUM_QUEUES),
)
def test_a_victim_is_never_an_empty_queue(rule, heads, sizes):
    lengths = [0 if h == EMPTY else n for h, n in zip(heads, sizes, strict=True)]
    if any(lengths):
        assert lengths[rule.victim(Waiting(heads, heads, lengths, sum(lengths), 100))]


@given(
    heads=st.lists(st.integers(0, 90), min_size=NUM_QUEUES, max_size=NUM_QUEUES),
    lengths=st.lists(st.integers(1, 9), min_size=NUM_QUEUES, max_size=NUM_QUEUES),
    room=st.integers(1, 60),
)
def test_returning_prompts_have_half_of_the_room_whatever_is_learned(heads, lengths, room):
    of_returning = {*OVERFLOW_QUEUES, *OVERFLOW_QUEUES.values()}
    if HazardQueues(2, 100).victim(Waiting(heads, heads, lengths, room, 100)) in of_returning:
        assert 2 * sum(lengths[queue] for queue in of_returning) > room
    protection = ProtectReturning()
    assert protection.victim(Waiting(heads, heads, lengths, room, 100)) not in RETURNING_QUEUES
    num_protected = sum(lengths[queue] for queue in RETURNING_QUEUES)
    left = num_protected - protection.num_overflowing(lengths, room)
    assert left == min(num_protected, room // 2)


def test_what_overflows_waits_as_if_used_just_now():
    """For LRU it is as old as before, and for what is learned of returning prompts."""
    heads = [EMPTY] * NUM_QUEUES
    heads[BlockClass.NEW], heads[BlockClass.OVERFLOW] = 50, 10
    joined = list(heads)
    joined[BlockClass.OVERFLOW] = 60
    lengths = [int(head != EMPTY) for head in heads]
    victims = [rule.victim(Waiting(heads, joined, lengths, 9, 100)) for rule in RULES]
    assert victims == [BlockClass.OVERFLOW, BlockClass.NEW, BlockClass.NEW]


def test_more_prompts_in_turn_than_half_of_the_memory_holds():
    """They outlive a flood between them, though each comes when it is the oldest of them."""
    cache, lru = (NameCache(rule, 100) for rule in (ProtectReturning(), Lru()))
    hits = {cache: 0, lru: 0}
    for now in range(1, 40):
        names = [(now % 7, i) for i in range(10)]
        flood = [(-now, i) for i in range(6)]
        for each in hits:
            hits[each] += each.num_cached(names)
            rest = BlockClass.RETURNING if now > 7 else BlockClass.NEW
            each.use(names, queues_of(10, 0, rest), 2 * now)
            each.use(flood, queues_of(6, 0, BlockClass.NEW), 2 * now + 1)
    assert hits == {cache: 10 * (39 - 14), lru: 0}, "from the third time on"


@given(start=st.integers(0, 9), size=st.integers(1, 9), hit=st.integers(0, 20))
def test_a_block_is_what_most_of_its_tokens_are(start, size, hit):
    tokens = range(start, start + size)
    assert is_mostly_hit(start, start + size, hit) == (2 * sum(t < hit for t in tokens) > size)


@given(num_blocks=st.integers(0, 9), num_hit=st.integers(0, 12))
def test_behind_what_it_hit_a_prompt_is_of_one_class(num_blocks, num_hit):
    for rest in RESTS:
        queues = queues_of(num_blocks, num_hit, rest)
        assert len(queues) == num_blocks and set(queues[num_hit:]) <= {rest}
        assert set(queues[:num_hit]) <= {rest.hit}


def test_long_is_what_is_long_beside_others():
    lengths = PromptLengths()
    assert [lengths.is_long(n) for n in (1000, 1000, 1501, 1000)] == [False, False, True, False]
    assert not any([lengths.is_long(100_000) for _ in range(200)][100:])
    assert not any(lengths.is_long(0) for _ in range(3))


@given(counts=st.lists(st.integers(0, 9), min_size=NUM_COUNTS, max_size=NUM_COUNTS))
def test_what_a_prompt_hit_never_goes_before_what_rests_on_it(counts):
    """Both were used at once, so both are of one age."""
    rule, by_queue = (
        HazardQueues(4, 40),
        [counts[first : first + NUM_BINS] for first in range(0, NUM_COUNTS, NUM_BINS)],
    )
    for table, reused in zip(rule.tables, by_queue[:NUM_QUEUES], strict=True):
        table.reused = list(reused)
    rule.update(by_queue[NUM_QUEUES:])
    for rest in RESTS:
        for age in range(60):
            heads = [EMPTY] * NUM_QUEUES
            heads[rest.hit] = heads[rest] = 100 - age
            lengths = [int(h != EMPTY) for h in heads]
            assert rule.victim(Waiting(heads, heads, lengths, 2, 100)) == rest


@settings(max_examples=60, deadline=None)
@given(prompts=PROMPTS, capacity=st.integers(1, 20))
def test_lru_over_queues_is_lru_over_one_list(prompts, capacity):
    """Whatever the classes are: the queues change no order that the rule does not ask for."""
    cache, model = NameCache(Lru(), capacity), OrderedDict()
    for now, prompt in enumerate(prompts, 1):
        names = names_of(*prompt)
        num_hit = cache.num_cached(names)
        cache.use(names, queues_of(len(names), num_hit, RESTS[now % len(RESTS)]), now)
        for name in reversed(names):
            model.pop(name, None)
            model[name] = None
        while len(model) > capacity:
            model.popitem(last=False)
        assert cache.num_cached(names) == min(len(names), capacity)
        assert len(cache) == len(model)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.booleans()), max_size=40),
    count=st.integers(0, 10),
)
def test_each_key_waits_once_and_is_given_up_once(steps, count):
    queues, waiting = ClassQueues(), set()
    for now, (key, queue, leaves) in enumerate(steps):
        if leaves:
            queues.discard(key)
            waiting.discard(key)
        else:
            queues.add(key, queue, now)
            waiting.add(key)
    count = min(count, len(waiting))
    given_up = queues.give_up(count, RULES[2], len(queues), 100)
    assert len(set(given_up)) == count and set(given_up) <= waiting
    assert len(queues) == len(waiting) - count
    assert not any(key in queues for key in given_up)


def test_bins_follow_each_other():
    bins = AgeBins(8, 1000)
    found = [bins.bin(age) for age in range(2000)]
    assert found == sorted(found) and found[0] == 0 and found[-1] == len(bins) - 1
    assert all(bins.bin(start) == i for i, start in enumerate(bins.starts))


def test_a_table_is_kaplan_and_meiers():
    """Of eight lives two end in each bin by reuse, one is forgotten in the second."""
    table = LifeTable(3)
    table.reused, table.forgotten = [2, 2, 0], [0, 1, 0]
    assert table.hazards([0, 0, 3], prior=0) == [2 / 8, 2 / 5.5, 0]
    table.fade(0.5)
    assert table.reused == [1, 1, 0]


def test_an_index_looks_past_the_ages_at_which_nobody_comes():
    hazards, starts = [0.0, 0.5, 0.0], [4, 8, 9]
    first, second, last = gittins_indices(hazards, starts)
    assert first == pytest.approx(0.5 / 4.75)
    assert second == pytest.approx(0.5 / 0.75)
    assert last == 0


@given(
    hazards=st.lists(st.floats(0, 1), min_size=2, max_size=8),
)
def test_an_index_is_no_more_than_the_best_bin_behind(hazards):
    starts = list(range(len(hazards)))
    for i, index in enumerate(gittins_indices(hazards, starts)[:-1]):
        best = max(h / (1 - h / 2) for h in hazards[i:-1])
        assert 0 <= index <= best + 1e-9


def follow(rule: LearnedRule, cache: NameCache, names: list) -> int:
    """Let a prompt come and end; return its hits."""
    hits, num_seen = cache.num_cached(names), rule.num_seen(names)
    returns = is_returning(num_seen, len(names))
    queues = queues_of(len(names), hits, BlockClass.RETURNING if returns else BlockClass.NEW)
    rule.start(names, num_seen, queues)
    due = rule.end(names, queues)
    cache.use(names, queues, rule.now)
    if due:
        rule.update(cache.capacity)
    return hits


def test_it_starts_with_lru_and_learns():
    rule = LearnedRule(Lru(), 64)
    cache = NameCache(rule, 64)
    assert rule.name == "lru"
    returning = [("back", i) for i in range(16)]
    for number in range(200):
        follow(rule, cache, [(number, i) for i in range(40)])
        follow(rule, cache, [(-1 - number, i) for i in range(40)])
        hits = follow(rule, cache, returning)
    assert rule.name in ("learned", "protect") and hits == len(returning)
    rule.clear()
    assert rule.num_seen(returning) == 0


@pytest.mark.parametrize(
    ("hits", "in_force"),
    [
        ([9, 9, 9], "protect"),
        ([9, 9, 9.4], "protect"),  # a name, faded to less than half
        ([9, 9, 10], "learned"),
        ([11, 11, 9], "protect"),
        ([11, 9, 11], "learned"),
        ([12, 9, 9], "lru"),
        ([9, 90, 9], "protect"),
    ],
)
def test_which_rule_is_in_force(hits, in_force):
    rule = LearnedRule(Lru(), 256)
    rule._hits = hits
    rule.update(256)
    assert rule.name == in_force


def test_a_flood_of_prompts_that_nobody_repeats_teaches_nothing():
    """Then it is as with the protection of returning prompts, whatever the flood's length."""
    rule = LearnedRule(Lru(), 64)
    cache = NameCache(rule, 64)
    returning = [("back", i) for i in range(16)]
    follow(rule, cache, returning)
    follow(rule, cache, returning)
    for number in range(200):
        follow(rule, cache, [(number, i) for i in range(40)])
    assert rule.name == "protect"
    assert follow(rule, cache, returning) == len(returning)


def test_who_starts_is_counted_before_anybody_ends():
    """One that still runs when the same prompt comes again has used its names before."""
    alone, overlapping = (LearnedRule(Lru(), 64) for _ in range(2))
    names = list(range(16))
    queues = queues_of(16, 0, BlockClass.NEW)
    for rule in (alone, overlapping):
        rule.start(names, 0, queues)
        rule.end(names, queues)
        rule.start(names, 16, queues)
    overlapping.start(names, 16, queues)
    for rule in (alone, overlapping):
        rule.end(names, queues)
    reused = [sum(sum(t.reused) for t in rule._learned.tables) for rule in (alone, overlapping)]
    assert reused == [16, 16], "a wait ends once"
    assert [rule._hits[0] for rule in (alone, overlapping)] == [16, 32]


@settings(max_examples=25, deadline=None)
@given(prompts=PROMPTS)
def test_any_traffic_can_be_followed(prompts):
    rule = LearnedRule(Lru(), 8)
    cache = NameCache(rule, 8)
    for prompt in prompts:
        follow(rule, cache, names_of(*prompt))
        assert len(cache) <= 8
