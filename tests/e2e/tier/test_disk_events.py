# SPDX-License-Identifier: Apache-2.0
"""KV events tell what is in memory and what is on the disk below: media ``CPU`` and ``DISK``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from tests.e2e.core.test_event_publisher import PublishedEngine, follow
from tests.e2e.core.workload import Workload
from tests.e2e.tier.configured import DRAFTS, HOST, PLAIN, build
from tests.e2e.tier.test_disk import seeded, settle
from tests.e2e.tier.test_kv_events import Router
from tests.e2e.tier.test_random_traffic import small_units
from tests.e2e.tier.tier_engine import TierEngine
from vllm_ascend.tier.layout import ROWS
from vllm_ascend_evaluation.kv_events.prefix_index import PrefixIndex

__all__ = ["seeded", "small_units"]

_EVENTS = {"enable_kv_cache_events": True}
Start = Callable[..., TierEngine]


@pytest.fixture
def start(tmp_path) -> Iterator[Start]:
    """Start an engine over the disk of those before it."""
    started: list[TierEngine] = []

    def start_engine(configuration=PLAIN, gib=0.0008, disk_gib=1.0, room=1.2) -> TierEngine:
        disk = {"path": str(tmp_path), "gib": disk_gib}
        tier = {**HOST, "gib": gib, "disk": disk, "pool": "p"}
        started.append(build(configuration, room, 1, tier, **_EVENTS))
        return started[-1]

    yield start_engine
    for engine in started:
        engine.index.disk.work.closes.set()


class Routers:
    """What routers know of both levels."""

    def __init__(self, engine: TierEngine) -> None:
        self.engine = engine
        self.memory, self.disk = Router(engine, "CPU", "DISK"), Router(engine, "DISK", "CPU")

    def check(self) -> None:
        """Compare with what is there, once nothing moves any more."""
        settle(self.engine)
        self.engine.scheduler.connector.take_events()
        index = self.engine.index
        in_memory = {key for key in index._places if index.are_in_memory([key])}
        assert self.memory.tokens.keys() == named(in_memory)
        assert self.disk.tokens.keys() <= named(index.disk._index._generations)


def named(keys) -> set[bytes | int]:
    """Return the names of those keys that are rows."""
    return {maybe_convert_block_hash(key[1:]) for key in keys if key[:1] == ROWS}


@pytest.mark.parametrize("disk_gib", [1.0, 0.002], ids=["all fits", "evicts"])
def test_what_is_told_is_where_rows_are(switch, start, disk_gib):
    switch(PLAIN.environment)
    engine = start(disk_gib=disk_gib)
    routers = Routers(engine)
    Workload(engine, replace(PLAIN.traffic, busy_reset=0.0), 1).run(150)
    routers.check()
    on_disk = named(engine.index.disk._index._generations)
    assert routers.disk.tokens.keys() == on_disk, "nobody has left anything before"
    assert routers.memory.num_removed and bool(routers.disk.num_removed) is (disk_gib < 1)
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    routers.check()
    assert not routers.disk.tokens and not routers.memory.tokens


def test_what_an_earlier_engine_left_is_told_of_when_it_is_hit(switch, start):
    switch(PLAIN.environment)
    prompt = list(range(200))
    engine = start(room=4.0, gib=0.02)
    engine.add("a", prompt, 1)
    engine.run()
    settle(engine)
    second = start(room=4.0, gib=0.02)
    routers = Routers(second)
    routers.check()
    assert not routers.disk.tokens, "nobody knows whose rows these are"
    second.add("b", prompt, 1)
    second.run()
    routers.check()
    size = second.tier._layout.unit
    told = sorted(routers.disk.tokens.values())
    assert told[:-1] == [tuple(prompt[i : i + size]) for i in range(0, len(told[:-1]) * size, size)]
    assert routers.memory.tokens == routers.disk.tokens and second.tier.counts.disk_read_bytes


def test_what_cannot_be_read_is_not_told_of_any_longer(switch, start, tmp_path):
    """With drafts several objects have one name."""
    switch(DRAFTS.environment)
    engine = start(DRAFTS, gib=0.02)
    routers = Routers(engine)
    Workload(engine, replace(DRAFTS.traffic, busy_reset=0.0), 1).run(60)
    settle(engine)
    second = start(DRAFTS, gib=0.02)
    routers = Routers(second)
    for path in sorted(tmp_path.glob("granule-tier/*/*/r*"))[::3]:
        path.unlink()
    Workload(second, replace(DRAFTS.traffic, busy_reset=0.0), 1).run(60)
    assert second.tier.counts.disk_not_read and second.tier.counts.disk_read_bytes
    routers.check()


def test_a_subscriber_of_vllms_publisher_reads_both_media(switch, start):
    switch(PLAIN.environment)
    engine = start(room=4.0)
    published = PublishedEngine(engine)
    try:
        for number in range(8):
            engine.add(f"{number}", [number, *range(200)], 1)
            engine.run()
        settle(engine)
        engine.add("last", [1, 2, 3], 1)
        engine.run()
        events = follow(published.subscribe(), PrefixIndex(), published.last_ts)
    finally:
        published.publisher.shutdown()
    media = {medium: set() for medium in ("GPU", "CPU", "DISK")}
    for event in events:
        names = set(event.block_hashes)
        if hasattr(event, "token_ids"):
            media[event.medium] |= names
        else:
            media[event.medium] -= names
    assert media["DISK"] == named(engine.index.disk._index._generations)
    assert media["CPU"] and media["DISK"]
