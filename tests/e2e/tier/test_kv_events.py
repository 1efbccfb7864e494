# SPDX-License-Identifier: Apache-2.0
"""A router that follows the tier's KV events knows, step by step, which rows it holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from tests.e2e.core.event_follower import over_the_wire
from tests.e2e.core.workload import Workload
from tests.e2e.tier.configured import DRAFTS, HOST, MOONCAKE, PLAIN, build
from tests.e2e.tier.test_random_traffic import small_units
from tests.e2e.tier.test_shared_pool import pool
from tests.e2e.tier.tier_engine import TierEngine
from vllm_ascend.tier.layout import ROWS

__all__ = ["pool", "small_units"]

_EVENTS = {"enable_kv_cache_events": True}


class Router:
    """Follows an engine's events, and knows what one medium holds.

    Attributes:
        tokens: Hash of a unit of rows -> its tokens.
        num_stored: Units told of in all.
        num_removed: Units taken back.
    """

    def __init__(self, engine: TierEngine, medium: str, *others: str) -> None:
        self.tokens: dict[bytes | int, tuple[int, ...]] = {}
        self.num_stored = self.num_removed = 0
        self._engine, self._medium, self._others = engine, medium, others
        connector = engine.scheduler.connector
        self._take = connector.take_events
        connector.take_events = self._follow

    def _follow(self) -> Any:
        events = list(self._take())
        for event in over_the_wire(events):
            if event.medium in self._others:
                continue
            assert event.medium == self._medium
            if hasattr(event, "token_ids"):
                self._stored(event)
                continue
            self.num_removed += len(event.block_hashes)
            for name in event.block_hashes:
                del self.tokens[name]
        return events

    def _stored(self, event: Any) -> None:
        size = event.block_size
        assert size == self._engine.tier._layout.unit
        assert (
            len(event.token_ids) == size * len(event.block_hashes) == size * len(event.extra_keys)
        )
        assert event.parent_block_hash not in event.block_hashes
        for i, name in enumerate(event.block_hashes):
            assert name not in self.tokens, "it is told of once"
            self.tokens[name] = tuple(event.token_ids[i * size : (i + 1) * size])
        self.num_stored += len(event.block_hashes)


def loadable(engine: TierEngine) -> set[bytes | int]:
    """Return the names of the rows that can be loaded."""
    keys = [key for key in engine.index._places if key[:1] == ROWS]
    there = engine.index.contains(keys)
    return {
        maybe_convert_block_hash(k[1:]) for k, is_there in zip(keys, there, strict=True) if is_there
    }


@pytest.mark.parametrize("gib", [0.01, 0.001], ids=["all fits", "evicts"])
def test_what_is_told_is_what_can_be_loaded(switch, gib):
    switch(PLAIN.environment)
    engine = build(PLAIN, 1.2, crc32(b"%f" % gib), {**HOST, "gib": gib}, **_EVENTS)
    router = Router(engine, "CPU")
    Workload(engine, replace(PLAIN.traffic, busy_reset=0.0), 1).run(150)
    engine.scheduler.connector.take_events()
    assert router.tokens.keys() == loadable(engine)
    assert router.num_stored > 50 and bool(router.num_removed) is (gib < 0.01)
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    engine.scheduler.connector.take_events()
    assert not router.tokens


def test_with_drafts_rows_have_the_name_of_their_own_tokens(switch):
    """Objects are named by the unit behind as well, routers know nothing of that."""
    switch(DRAFTS.environment)
    engine = build(DRAFTS, 4.0, 1, HOST, **_EVENTS)
    router = Router(engine, "CPU")
    shared = list(range(40))
    for name, behind in (("a", 50), ("b", 51)):
        engine.add(name, shared + [behind] * 40, 1)
        engine.run()
    size = engine.tier._layout.unit
    told = sorted(tokens for tokens in router.tokens.values() if tokens[-1] < 40)
    assert told == sorted({tuple(shared[i : i + size]) for i in range(0, 40 // size * size, size)})


def test_a_store_that_is_shared_has_another_medium(switch, pool):
    switch(PLAIN.environment)
    engine = build(PLAIN, 4.0, 1, MOONCAKE, **_EVENTS)
    router = Router(engine, "EXTERNAL")
    engine.add("a", list(range(100)), 1)
    engine.run()
    assert router.tokens


def test_without_kv_events_none_are_kept(switch):
    switch(PLAIN.environment)
    engine = build(PLAIN, 4.0, 1, HOST)
    engine.add("a", list(range(100)), 1)
    engine.run()
    assert not list(engine.scheduler.connector.take_events())
