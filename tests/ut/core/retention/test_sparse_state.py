# SPDX-License-Identifier: Apache-2.0
"""Which blocks of compressor state are real: the end of a step, and tails that are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.kv_cache_interface import KVCacheGroupSpec

import vllm_ascend.patch.platform  # noqa: F401 - the managers of its specs
from tests.ut.core.helpers import make_request
from tests.ut.core.real_groups import Caching
from vllm_ascend.core.connectors.connector_rules import (
    TAKES_TAILS_ALONE,
)
from vllm_ascend.core.group_managers import make_managers
from vllm_ascend.core.layout.dsv4_specs import ascend_specs
from vllm_ascend.core.plan.cache_plan import describe_groups, plan_cache
from vllm_ascend.core.plan.scheduler_facts import SchedulerFacts
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.sparse_state import num_free_in_tail

GRANULE = 128
SPARSE = PrefixCacheConfig(apply_dsv4_patch=True, partial_hits=True, sparse_state=True, retention=0)
STATE = 2  # the group of the C4 compressor's state, whose blocks have 8 tokens at 128 rows


def make_caching(config: PrefixCacheConfig = SPARSE, **facts: Any) -> Caching:
    """Return what is cached of a sliding window, C4 rows and the state of their compressor."""
    kinds = ascend_specs(128)
    specs = [kinds.window, kinds.mla[4], kinds.state[4], kinds.mla[128], kinds.state[128]]
    plan = plan_cache(
        specs,
        config,
        SchedulerFacts(**facts),
        max_model_len=4096,
        max_num_batched_tokens=512,
        hash_tokens=GRANULE,
    )
    pool = AscendBlockPool(1000, True, GRANULE)
    managers = make_managers([KVCacheGroupSpec([], spec) for spec in specs], plan, pool)
    groups = describe_groups(managers, frozenset(), plan)
    return Caching(pool, groups, plan)


def start(caching: Caching, num_tokens: int = 1000) -> None:
    hasher = get_request_block_hasher(GRANULE, sha256)
    caching.ledger.record("r").request = make_request("r", list(range(num_tokens)), hasher)


def rows_read(caching: Caching, group: int, end: int, num_slots: int | None = None):
    manager = caching.groups.all[group].manager
    return list(manager.rows_read("r", 0, end, num_slots or end))


def test_of_a_chunk_its_end_is_read():
    """[0, 300) is scheduled: the open window is [300, 304), the one before it [296, 300)."""
    caching = make_caching()
    start(caching)
    # Besides where it would be resumed, were it to end now: 256, behind [252, 256).
    assert rows_read(caching, STATE, 300) == [31, 37]


def test_kept_boundaries_leave_their_tails():
    """Replay boundary 896 of a prompt of 1,000 tokens, and every 256 tokens."""
    caching = make_caching(replace(SPARSE, retention=256))
    start(caching)
    assert rows_read(caching, STATE, 1000) == [31, 63, 95, 111, 124]
    caching.ledger.records["r"].junction = 384
    assert rows_read(caching, STATE, 1000) == [31, 47, 63, 95, 111, 124]


def test_state_that_is_not_read_at_its_windows_end_has_no_tails():
    """The C128 compressor does not overlap: at 1,000 its open window is [896, 1000]."""
    caching = make_caching(replace(SPARSE, retention=256))
    start(caching)
    assert rows_read(caching, 4, 1000) == [28, 29, 30, 31]


def test_drafts_may_be_rejected():
    """With three drafts the next step may start three tokens before the end."""
    caching = make_caching(num_draft_tokens=3)
    start(caching, num_tokens=100)
    assert rows_read(caching, STATE, 99, num_slots=102) == [11, 12]


def test_who_has_not_named_himself_gets_every_block():
    caching = make_caching()
    assert rows_read(caching, STATE, 24) == [0, 1, 2]


def test_tables_have_null_blocks_where_nobody_reads():
    caching = make_caching()
    start(caching)
    new_blocks = caching.allocate_new_blocks("r", 512, 512)
    real = [i for i, block in enumerate(new_blocks[STATE]) if not block.is_null]
    assert real == [63] and len(new_blocks[STATE]) == 64


@pytest.mark.parametrize("num_external", [0, 100, 300, 384, 500])
def test_blocks_for_external_tokens_are_counted_before_they_are_taken(num_external):
    caching = make_caching(connector=frozenset({TAKES_TAILS_ALONE}))
    start(caching)
    no_hit: tuple[list, ...] = tuple([] for _ in caching.groups.all)
    num_tokens, pool = num_external + 200, caching.block_pool
    needed = caching.blocks_needed("r", num_tokens, no_hit, 0, num_external, num_tokens)
    free = pool.get_num_free_blocks()
    caching.take_blocks("r", no_hit, 0, num_external)
    caching.allocate_new_blocks("r", num_tokens, num_tokens)
    assert free - pool.get_num_free_blocks() == needed


def test_a_running_request_holds_its_open_windows_alone():
    """At 300 the C128 compressor's is [256, 300), and the window before that is not read again."""
    caching = make_caching()
    start(caching)
    request = caching.ledger.records["r"].request
    for num_tokens in range(100, 301):
        caching.remove_skipped_blocks("r", num_tokens - 1)
        caching.allocate_new_blocks("r", num_tokens, num_tokens)
        caching.cache_blocks(request, num_tokens)
        caching.new_step_starts()
    table = caching.groups.all[4].manager.req_to_blocks["r"]
    assert [i for i, block in enumerate(table) if not block.is_null] == [8, 9]


@pytest.mark.parametrize("free", [1000, 0])
def test_spare_tails_get_state_while_memory_is_idle(free):
    caching = make_caching(replace(SPARSE, spare_tails=True))
    start(caching)
    pool = caching.block_pool
    if not free:
        pool.get_new_blocks(pool.get_num_free_blocks() - 20)
    new_blocks = caching.allocate_new_blocks("r", 512, 512)
    real = [i for i, block in enumerate(new_blocks[STATE]) if not block.is_null]
    assert real == ([15, 31, 47, 63] if free else [63])
    caching.sparse_state.release_spares()
    table = caching.groups.all[STATE].manager.req_to_blocks["r"]
    assert [i for i, block in enumerate(table) if not block.is_null] == [63]


class Walked(list):
    """Blocks that count how many of them are looked at."""

    num_walked = 0

    def __reversed__(self):
        for block in super().__reversed__():
            self.num_walked += 1
            yield block


def test_null_blocks_in_front_of_a_tail_are_not_walked_through():
    """A hit of a million tokens has a hundred thousand."""
    pool = make_caching().block_pool
    free, held = pool.blocks[5], pool.get_new_blocks(1)[0]
    blocks = Walked([pool.null_block] * 1000 + [free, held])
    assert num_free_in_tail(blocks) == 1
    assert blocks.num_walked == 3
