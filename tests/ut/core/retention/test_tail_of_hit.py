# SPDX-License-Identifier: Apache-2.0
"""What a hit rests on in the groups that forget."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher

from tests.ut.core.helpers import make_request
from tests.ut.core.real_groups import make_groups, make_plan, window
from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.reporting.cache_stats import CacheStats
from vllm_ascend.core.retention.tail_cache import TailCache

REQUEST = make_request("r", list(range(64)), get_request_block_hasher(4, sha256))


def make_tails(groups: Sequence[Group], pool: BlockPool) -> TailCache:
    plan = make_plan(window(4, 9), alignment=4)
    return TailCache(pool, groups, plan, lookahead=0, least_gain_tokens=0, stats=CacheStats())


def test_a_hit_rests_on_the_tails_of_its_windows():
    """Windows of 9 and 5 tokens before token 16: [8, 16) and [12, 16)."""
    pool = BlockPool(20, True, 4)
    groups = make_groups(window(4, 9), window(4, 5), alignment=4, pool=pool)
    hits = []
    for group in groups:
        blocks = pool.get_new_blocks(4)
        pool.cache_full_blocks(REQUEST, blocks, 0, 4, 4, group.id)
        hits.append(blocks)
    tail = make_tails(groups, pool).tail_of_hit(hits, 16).blocks
    assert [(each.block, each.start_token) for each in tail] == [
        (hits[0][2], 8),
        (hits[0][3], 12),
        (hits[1][3], 12),
    ]
    assert all(each.is_intact for each in tail)
    pool.free_blocks(hits[1])
    pool._maybe_evict_cached_block(hits[1][3])
    assert [each.is_intact for each in tail] == [True, True, False]


def test_a_hit_does_not_rest_on_blocks_without_a_name():
    pool = BlockPool(20, True, 4)
    (group,) = make_groups(window(4, 5), alignment=4, pool=pool)
    with pytest.raises(AssertionError, match="it was found in the index"):
        make_tails([group], pool).tail_of_hit([pool.get_new_blocks(4)], 16)
