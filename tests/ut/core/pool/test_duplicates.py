# SPDX-License-Identifier: Apache-2.0
"""Of blocks with the same rows one is kept, unless the rows of draft layers may differ."""

from __future__ import annotations

import pytest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_request_block_hasher

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.ut.core.helpers import make_request
from vllm_ascend.core.layout.groups import group_suffix
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.core.pool.given_up_names import GivenUpNames
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool

GROUP, DRAFTS, TOKENS = 0, 1, 16
HASHER = get_request_block_hasher(TOKENS, sha256)


class Computed:
    """Two requests with the same prompt of two blocks; each has computed it in a block of its own.

    Without the null block the pool has 8.
    """

    def __init__(self) -> None:
        self.pool = AscendBlockPool(9, True, TOKENS)
        self.pool.draft_groups = {DRAFTS}
        self.request = make_request("r", list(range(2 * TOKENS)), HASHER)

    def compute(self, group_id: int = GROUP, rank: Rank = Rank.KEPT) -> list[KVCacheBlock]:
        blocks = self.pool.get_new_blocks(2)
        self.pool.enter(self.request, blocks, range(2), TOKENS, group_id, rank)
        return blocks

    def names(self, blocks: list[KVCacheBlock]) -> list[bool]:
        return [block.block_hash is not None for block in blocks]


def test_idle_blocks_are_given_up_when_their_rows_are_computed_again():
    cache = Computed()
    first = cache.compute(rank=Rank.PROTECTED)
    cache.pool.note_use(first[0])
    cache.pool.free_blocks(first)
    again = cache.compute(rank=Rank.SPARE)
    assert (cache.names(first), cache.names(again)) == ([False, False], [True, True])
    assert cache.pool.get_new_blocks(2) == first[::-1], "they are the next to be handed out"
    assert [cache.pool.rank(block) for block in again] == [Rank.PROTECTED] * 2
    assert [cache.pool.was_used(block) for block in again] == [True, False]


def test_what_two_use_is_kept_once_when_one_of_them_has_ended():
    cache = Computed()
    first, second = cache.compute(rank=Rank.PROTECTED), cache.compute()
    assert cache.names(first) == cache.names(second) == [True, True], "both are in use"
    cache.pool.free_blocks(first)
    assert (cache.names(first), cache.names(second)) == ([False, False], [True, True])
    assert [cache.pool.rank(block) for block in second] == [Rank.PROTECTED] * 2
    cache.pool.free_blocks(second)
    assert cache.names(second) == [True, True]
    assert cache.pool.get_num_free_blocks() == 8


def test_rows_of_drafts_are_kept_beside_each_other():
    """The last row of each depends on the token behind it, which may be another one."""
    cache = Computed()
    first = cache.compute(DRAFTS)
    cache.pool.free_blocks(first)
    second, third = cache.compute(DRAFTS), cache.compute(DRAFTS)
    cache.pool.free_blocks(second)
    assert cache.names(first + second + third) == [True] * 6


@pytest.mark.parametrize("prepend", [False, True])
def test_a_name_is_lost_with_its_last_block(prepend):
    cache = Computed()
    cache.pool.given_up = GivenUpNames(group_suffix(GROUP), 8)
    first, second = cache.compute(), cache.compute()
    keys = [block.block_hash for block in first]
    cache.pool.free_blocks(first, prepend=prepend)
    for block in first:
        cache.pool.give_up(block)
    assert not any(key in cache.pool.given_up for key in keys)
    cache.pool.free_blocks(second)
    cache.pool.get_new_blocks(8)
    assert all(key in cache.pool.given_up for key in keys)
