# SPDX-License-Identifier: Apache-2.0
"""How far a request's prefix is cached in one group, and which tail or source a boundary has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_request_block_hasher
from vllm.v1.kv_cache_interface import KVCacheSpec
from vllm.v1.request import Request

from tests.ut.core.helpers import make_request
from tests.ut.core.real_groups import compressed, full, make_groups, make_plan, window
from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.lookup.prefix_lookup import CacheView, PrefixLookup
from vllm_ascend.core.pool.successors import SuccessorHashes
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool

GRANULE = 4


def request(tokens: list[int]) -> Request:
    return make_request("r", tokens, get_request_block_hasher(GRANULE, sha256))


class Cache:
    """A pool and one group, in which blocks of a request are entered by hand."""

    def __init__(self, spec: KVCacheSpec, *, has_drafts: bool = False) -> None:
        self.pool = AscendBlockPool(40, True, GRANULE)
        (self.group,) = make_groups(
            spec,
            alignment=GRANULE,
            pool=self.pool,
            ends_inside_blocks=True,
            draft_groups={0} if has_drafts else frozenset(),
        )
        self.successors = SuccessorHashes(GRANULE)
        plan = make_plan(spec, alignment=GRANULE, ends_inside_blocks=True)
        self.view = CacheView(self.pool, plan, self.successors)

    def enter(self, of: Request, ordinals: Sequence[int]) -> dict[int, KVCacheBlock]:
        """Cache some of a request's blocks; return them by ordinal."""
        tokens = self.group.block_tokens
        blocks = self.pool.get_new_blocks(max(ordinals) + 1)
        for i in ordinals:
            self.pool.cache_full_blocks(of, blocks, i, i + 1, tokens, self.group.id)
        return {i: blocks[i] for i in ordinals}

    def look_up(self, of: Request) -> tuple[PrefixLookup, Group]:
        return PrefixLookup(self.view, of.block_hashes), self.group


PROMPT = request(list(range(48)))


@pytest.mark.parametrize(
    ("block_tokens", "limit", "found"),
    [(8, 48, [0, 1, 2]), (8, 23, [0, 1]), (4, 48, [0, 1, 2]), (2, 48, [0, 1, 2]), (8, 7, [])],
)
def test_a_prefix_ends_at_its_first_gap_or_the_limit(block_tokens, limit, found):
    """Blocks coarser than a granule, as long as one, and finer."""
    cache = Cache(full(block_tokens))
    entered = cache.enter(PROMPT, [0, 1, 2, 4])
    look_up, group = cache.look_up(PROMPT)
    prefix, matched = look_up.longest_prefix(group, limit)
    assert prefix == [entered[i] for i in found]
    assert matched == len(found) * block_tokens


def test_a_prompt_of_another_beginning_matches_nothing():
    cache = Cache(full(8))
    cache.enter(PROMPT, [0, 1, 2])
    look_up, group = cache.look_up(request([9, *range(1, 48)]))
    assert look_up.longest_prefix(group, 48) == ([], 0)


def test_a_match_goes_on_granule_by_granule_inside_a_compressed_block():
    """Block 1 holds [16, 32); granules [16, 20) and [20, 24) of it are entered."""
    cache = Cache(compressed(4, 4))
    blocks = cache.enter(PROMPT, [0])
    unfinished = cache.pool.get_new_blocks(1)[0]
    cache.pool.granules.enter(0, unfinished, PROMPT.block_hashes[4:6])
    look_up, group = cache.look_up(PROMPT)
    assert look_up.longest_prefix(group, 48) == ([blocks[0]], 24)
    assert look_up.longest_prefix(group, 23) == ([blocks[0]], 20), "a limit inside a granule"
    assert look_up.source(group, 24) == (unfinished, 24)
    assert look_up.source(group, 20) == (unfinished, 20)
    assert look_up.source(group, 28) == (None, 24), "no source, and no hit behind token 24"


def test_a_source_may_be_missing_from_the_start_of_its_block():
    look_up, group = Cache(compressed(4, 4)).look_up(PROMPT)
    assert look_up.source(group, 28) == (None, 16)


def test_a_tail_is_the_blocks_that_its_window_reads():
    """A window of 9 tokens reads 8 back: two blocks of 4."""
    cache = Cache(window(4, 9))
    blocks = cache.enter(PROMPT, [3, 4, 8, 9])
    look_up, group = cache.look_up(PROMPT)
    assert look_up.tail(group, 20) == ([blocks[3], blocks[4]], 20)
    assert look_up.tail(group, 40) == ([blocks[8], blocks[9]], 40)


@pytest.mark.parametrize(("boundary", "bound"), [(24, 20), (36, 28), (44, 40)])
def test_without_a_tail_no_hit_reaches_over_the_missing_block(boundary, bound):
    """Block 5 holds [20, 24), block 7 [28, 32), block 10 [40, 44)."""
    cache = Cache(window(4, 9))
    cache.enter(PROMPT, [3, 4, 8, 9])
    look_up, group = cache.look_up(PROMPT)
    assert look_up.tail(group, boundary) == ([], bound)


def test_the_last_boundary_whose_last_block_is_cached():
    cache = Cache(window(4, 9))
    cache.enter(PROMPT, [3, 8])
    look_up, group = cache.look_up(PROMPT)
    ends = {boundary: look_up.last_tail_end(group, boundary) for boundary in (48, 36, 32, 16, 12)}
    assert ends == {48: 36, 36: 36, 32: 16, 16: 16, 12: 0}


@pytest.mark.parametrize("spec", [full(4), window(4, 5)])
def test_with_drafts_only_a_copy_with_the_same_successor_serves(spec):
    cache = Cache(spec, has_drafts=True)
    block = cache.enter(PROMPT, [0])[0]
    cache.successors.remember(0, PROMPT, block, 4)
    other = request([*range(4), 99, *range(5, 48)])
    for asked, blocks in ((PROMPT, [block]), (other, [])):
        look_up, group = cache.look_up(asked)
        if group.is_downward_closed:
            assert look_up.longest_prefix(group, 48)[0] == blocks
        else:
            assert look_up.tail(group, 4)[0] == blocks
