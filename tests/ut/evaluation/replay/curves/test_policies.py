# SPDX-License-Identifier: Apache-2.0
"""Textbook policies on prefix blocks: by hand, and against brute force."""

import random
from functools import cache
from itertools import combinations

import pytest

from vllm_ascend_evaluation.replay.curves.policies import PrefixTrace, belady, knows_whether, lru


def trace(*prompts: str) -> PrefixTrace:
    """A letter is a token and a block."""
    return PrefixTrace.of([[ord(letter) for letter in prompt] for prompt in prompts], 1)


def test_blocks_stand_for_prefixes():
    """The same tokens behind other ones are another block, and so is half a block."""
    one = PrefixTrace.of([[1, 2, 3, 4, 5], [1, 2, 3, 4], [3, 4], [1, 2, 3]], 2)
    first, second, third, fourth = one.prompts
    assert len(first) == 3 and second == first[:2]
    assert not set(third) & set(first)
    assert fourth[0] == first[0] and fourth[1] not in first
    assert one.prompt_tokens == (5, 4, 2, 3)


def test_the_last_token_is_never_a_hit():
    again = PrefixTrace.of([[1, 2, 3, 4]] * 2, 2)
    assert lru(again, 10) == [0, 2]
    assert again.rate([0, 2]) == pytest.approx(100 * 3 / 8)
    assert PrefixTrace.of([], 2).rate([]) == 0.0


def test_lru_gives_up_a_prompt_from_its_end():
    assert lru(trace("abc", "x", "abc"), 3) == [0, 0, 2]
    assert lru(trace("abc", "xyz", "abc"), 3) == [0, 0, 0]


def test_a_block_without_those_before_it_is_no_hit():
    """Belady keeps what comes back first, but of it only what begins at the beginning."""
    assert belady(trace("abc", "x", "abc"), 2) == [0, 0, 2]
    assert belady(trace("abc", "xyz", "abc"), 3) == [0, 0, 3]


def test_what_never_comes_back_takes_no_room():
    assert belady(trace("ab", "pqrstuv", "ab"), 2) == [0, 0, 2]
    assert belady(trace("ab", "cd", "cd", "ab"), 2) == [0, 0, 2, 0]


def test_who_knows_whether_keeps_what_comes_again_and_not_when():
    assert knows_whether(trace("ab", "pqrstuv", "ab"), 2) == [0, 0, 2]
    # Both come again; the older one goes, although it comes sooner.
    assert knows_whether(trace("a", "b", "x", "a", "b"), 1) == [0, 0, 0, 0, 1]


def test_nothing_fits_into_nothing():
    for policy in (lru, knows_whether, belady):
        assert policy(trace("ab", "ab"), 0) == [0, 0]


def best_possible(of: PrefixTrace, capacity: int) -> int:
    """Hit blocks of the best choice of what to keep after every prompt, by trying all."""

    @cache
    def best(number: int, cached: frozenset[int]) -> int:
        if number == len(of.prompts):
            return 0
        blocks = of.prompts[number]
        hits = next((i for i, block in enumerate(blocks) if block not in cached), len(blocks))
        there = sorted(cached | set(blocks))
        kept = combinations(there, min(capacity, len(there)))
        return hits + max(best(number + 1, frozenset(choice)) for choice in kept)

    return best(0, frozenset())


@pytest.mark.parametrize("seed", range(40))
def test_belady_is_optimal_and_lru_is_not_better(seed):
    rng = random.Random(seed)
    prompts = ["".join(rng.choices("ab", k=rng.randint(1, 3))) for _ in range(6)]
    capacity = rng.randint(1, 3)
    of = trace(*prompts)
    best = best_possible(of, capacity)
    assert sum(belady(of, capacity)) == best, (prompts, capacity)
    assert sum(lru(of, capacity)) <= sum(knows_whether(of, capacity)) <= best
