# SPDX-License-Identifier: Apache-2.0
"""Which prompts count as returning, how much is theirs, and what is remembered of others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHashWithGroupId,
    KVCacheBlock,
    get_request_block_hasher,
)

from tests.ut.core.helpers import make_request
from vllm_ascend.core.layout.block_names import BlockNames
from vllm_ascend.core.layout.groups import group_suffix
from vllm_ascend.core.policy.protection import num_overflowing
from vllm_ascend.core.pool.given_up_names import GivenUpNames
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool, Rank
from vllm_ascend.core.retention.returning_prompts import REMEMBERED_NAMES, ReturningPrompts

HASH_TOKENS, BLOCK_TOKENS = 8, 16
SUFFIX, OTHER_SUFFIX = group_suffix(2), group_suffix(1)


def name(number: int, suffix: bytes = SUFFIX) -> BlockHashWithGroupId:
    return BlockHashWithGroupId(number.to_bytes(32, "big") + suffix)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_what_is_protected_leaves_half_of_the_free_memory_to_others(num_protected, num_others):
    num_free = num_protected + num_others
    left = num_protected - num_overflowing(num_protected, num_free)
    assert 0 <= left <= num_protected
    assert 2 * left <= num_free
    assert left == num_protected or 2 * (left + 1) > num_free, "no more is let go than has to be"


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([SUFFIX, OTHER_SUFFIX])), max_size=60),
)
def test_the_latest_names_of_one_group_are_remembered(capacity, given_up):
    names = GivenUpNames(SUFFIX, capacity)
    model: list[int] = []
    for number, suffix in given_up:
        names.add(name(number, suffix))
        if suffix == SUFFIX:
            model = [*(other for other in model if other != number), number][-capacity:]
        for known in range(10):
            assert (name(known) in names) == (known in model)
            assert name(known, OTHER_SUFFIX) not in names
    names.clear()
    assert not any(name(number) in names for number in range(10))


class Seen:
    """Prompts of one engine: their names are cached, given up, or unknown."""

    def __init__(self, num_blocks: int = 100) -> None:
        self.pool = BlockPool(num_blocks, True, HASH_TOKENS)
        self.returning = ReturningPrompts(self.pool, SUFFIX, block_tokens=BLOCK_TOKENS)
        self.hasher = get_request_block_hasher(HASH_TOKENS, sha256)

    def request(self, num_tokens: int, own_from: int | None = None):
        """A prompt that shares its tokens with all others up to ``own_from``."""
        own_from = num_tokens if own_from is None else own_from
        tokens = [*range(own_from), *(1000 + i for i in range(own_from, num_tokens))]
        return make_request("r", tokens, self.hasher)

    def key(self, request, ordinal: int) -> BlockHashWithGroupId:
        names = BlockNames(request.block_hashes, HASH_TOKENS, BLOCK_TOKENS)
        return BlockHashWithGroupId(names[ordinal] + SUFFIX)


@pytest.mark.parametrize("cached_blocks", range(9))
@pytest.mark.parametrize("given_up_blocks", range(9))
def test_names_that_are_cached_and_given_up_count_alike(cached_blocks, given_up_blocks):
    """Deep blocks go first, so what was given up lies behind what is cached."""
    seen = Seen()
    request = seen.request(8 * BLOCK_TOKENS)
    for ordinal in range(min(cached_blocks, 8)):
        seen.pool.cached_block_hash_to_block.insert(
            seen.key(request, ordinal), KVCacheBlock(ordinal)
        )
    for ordinal in range(cached_blocks, min(cached_blocks + given_up_blocks, 8)):
        seen.returning.given_up.add(seen.key(request, ordinal))
    expected = cached_blocks + given_up_blocks >= 6
    assert seen.returning.includes(request, 0) == expected
    assert seen.returning.includes(request, cached_blocks * BLOCK_TOKENS) == expected


@pytest.mark.parametrize(
    ("prompt", "matched", "returns"),
    [
        (1, 0, False),
        (1, 1, True),
        (10, 7, False),
        (10, 8, True),
        (12, 9, True),
        (100, 74, False),
        (100, 75, True),
        (101, 75, False),
        (101, 76, True),
    ],
)
def test_a_prompt_returns_if_three_quarters_of_it_are_matched(prompt, matched, returns):
    """Also where blocks have no names yet: short prompts never fill one."""
    seen = Seen()
    assert seen.returning.includes(seen.request(prompt), matched) is returns


@pytest.mark.parametrize(
    ("num_returning", "protected"), [(4, 4), (9, 9), (10, 10), (11, 10), (16, 10), (20, 10)]
)
def test_returning_prompts_keep_at_most_half_of_the_free_blocks(num_returning, protected):
    """Of 20 blocks, all of them free in the end."""
    pool = AscendBlockPool(21, True, HASH_TOKENS)
    request = Seen().request(20 * BLOCK_TOKENS)
    blocks = pool.get_new_blocks(20)
    pool.cache_full_blocks(request, blocks, 0, 20, BLOCK_TOKENS, 2)
    pool.protect(blocks[:num_returning])
    pool.free_blocks(blocks[num_returning:])
    pool.free_blocks(blocks[:num_returning])
    ranks = [pool.rank(block) for block in blocks]
    assert ranks.count(Rank.PROTECTED) == protected
    # Those that were freed first have waited longest, and go back among all others.
    assert ranks[:num_returning].index(Rank.PROTECTED) == num_returning - protected


def test_what_follows_another_prefix_is_another_name():
    seen = Seen()
    first = seen.request(10 * BLOCK_TOKENS)
    for ordinal in range(10):
        seen.returning.given_up.add(seen.key(first, ordinal))
    assert seen.returning.includes(seen.request(10 * BLOCK_TOKENS, own_from=128), 0)
    assert not seen.returning.includes(seen.request(10 * BLOCK_TOKENS, own_from=112), 0)
    assert not seen.returning.includes(seen.request(10 * BLOCK_TOKENS, own_from=0), 0)


def test_no_more_names_are_remembered_than_the_pool_accounts_for():
    seen = Seen(num_blocks=3)
    for number in range(100):
        seen.returning.given_up.add(name(number))
    remembered = [number for number in range(100) if name(number) in seen.returning.given_up]
    assert remembered == list(range(100 - 3 * REMEMBERED_NAMES, 100))
