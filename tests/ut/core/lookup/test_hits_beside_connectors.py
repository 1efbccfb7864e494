# SPDX-License-Identifier: Apache-2.0
"""Where a hit ends beside a KV connector."""

from __future__ import annotations

import pytest

from tests.ut.core.test_kv_cache_coordinator import Cache, compressed, request, tokens, window
from vllm_ascend.core.connectors.connector_rules import KNOWS_GRANULES, ConnectorQuery
from vllm_ascend.core.plan.scheduler_facts import building_scheduler


def test_a_connector_that_does_not_know_granules_keeps_hits_to_whole_blocks(monkeypatch):
    """Its scheduler half may take every hit for one of whole blocks."""
    monkeypatch.setenv("VLLM_ASCEND_DSV4_PARTIAL_HITS", "1")
    with building_scheduler(connector=frozenset()):
        cache = Cache(compressed(4, 4), window(8, 4))
    assert cache.coordinator.lcm_block_size == 16
    cache.run(request("a", tokens(30)))
    assert cache.hit(request("b", tokens(30)))[1] == 16


def cache_beside_a_connector(
    monkeypatch, answers: list, *, brings_tails: bool = False
) -> tuple[Cache, list]:
    """Return a cache with one prompt in it, and a list of what the connector is asked."""
    monkeypatch.setenv("VLLM_ASCEND_DSV4_PARTIAL_HITS", "1")
    with building_scheduler(connector=frozenset({KNOWS_GRANULES})):
        cache = Cache(compressed(4, 4), window(8, 4))
    asked: list[int] = []
    query = ConnectorQuery(
        lambda request, num: (asked.append(num), answers.pop(0))[1], brings_tails=brings_tails
    )
    cache.coordinator.lookup.connector = query
    cache.run(request("a", tokens(30)))
    return cache, asked


@pytest.mark.parametrize(
    "answer, hit",
    [((0, False), 28), ((12, False), 28), ((13, False), 16), ((13, True), 16), ((None, False), 16)],
)
def test_a_hit_ends_inside_a_block_unless_the_connector_brings_more(monkeypatch, answer, hit):
    cache, asked = cache_beside_a_connector(monkeypatch, [answer])
    probe = request("b", tokens(30))
    with cache.coordinator.looking_up(probe):
        assert cache.hit(probe)[1] == hit
    assert asked == [16], "asked for the hit as it is with external tokens"


def test_a_hit_of_whole_blocks_asks_no_connector(monkeypatch):
    cache, asked = cache_beside_a_connector(monkeypatch, [])
    probe = request("b", tokens(17))
    with cache.coordinator.looking_up(probe):
        assert cache.hit(probe)[1] == 16
    assert not asked


def test_a_look_up_that_nobody_named_asks_nobody(monkeypatch):
    cache, asked = cache_beside_a_connector(monkeypatch, [])
    assert cache.hit(request("b", tokens(30)))[1] == 16
    assert not asked


@pytest.mark.parametrize("params, hit", [({}, 28), ({"do_remote_decode": True}, 24)])
def test_a_prompt_that_will_be_shortened_is_not_hit_whole(monkeypatch, params, hit):
    """Of 29 tokens the last is dropped after the look-up; one must be left to compute."""
    cache, _ = cache_beside_a_connector(monkeypatch, [(0, False)])
    probe = request("b", tokens(29))
    probe.kv_transfer_params = params
    with cache.coordinator.looking_up(probe):
        assert cache.hit(probe)[1] == hit


@pytest.mark.parametrize("is_pulled", [True, False])
@pytest.mark.parametrize("answer, hit", [((0, False), 28), ((12, True), 28), ((13, True), 16)])
def test_where_the_tail_is_brought_rows_need_none(monkeypatch, answer, hit, is_pulled):
    cache, asked = cache_beside_a_connector(monkeypatch, [answer], brings_tails=True)
    probe = request("b", tokens(30))
    probe.kv_transfer_params = {"do_remote_prefill": is_pulled}
    with cache.coordinator.looking_up(probe):
        (rows, windows), found = cache.hit(probe)
    assert found == hit and asked == [16], "asked once"
    assert len(rows) == -(-hit // 16)
    # What is brought goes into blocks of the request's own.
    assert len(windows) == (0 if is_pulled and hit == 16 else hit // 4)


def test_rows_without_any_tail_count_where_it_is_brought(monkeypatch):
    cache, asked = cache_beside_a_connector(monkeypatch, [(13, True)], brings_tails=True)
    pool, windowed = cache.coordinator.block_pool, cache.coordinator.groups.windowed[0]
    pool.evict_blocks(
        {
            block.block_id
            for block in pool.blocks
            if block.block_hash is not None and block.block_hash.endswith(windowed.suffix)
        }
    )
    probe = request("b", tokens(30))
    assert cache.hit(probe)[1] == 0
    probe.kv_transfer_params = {"do_remote_prefill": True}
    with cache.coordinator.looking_up(probe):
        (rows, windows), found = cache.hit(probe)
    assert (len(rows), len(windows), found, asked) == (1, 0, 16, [16])
