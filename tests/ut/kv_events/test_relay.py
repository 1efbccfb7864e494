# SPDX-License-Identifier: Apache-2.0
"""What is passed on to routers that know no groups."""

from __future__ import annotations

import msgspec
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    ZmqEventPublisher,
)

from tests.ut.kv_events.ports import free_ports
from tests.ut.kv_events.test_prefix_index import described, removed, stored
from vllm_ascend.kv_events.relay import PrefixEvents, pass_on
from vllm_ascend.kv_events.subscriber import Subscriber


def test_one_group_of_whole_prefixes_is_passed_on():
    prefixes = PrefixEvents()
    tail, first, second = (
        described(0, "tail", tail=3, groups=3),
        described(1, groups=3),
        described(2, groups=3),
    )
    cleared, ours = AllBlocksCleared(), stored([1], group=1)
    others = [stored([1], group=0), stored([1], group=2), stored([2], first=1, group=4)]
    assert prefixes.of([tail, first, second, ours, *others, cleared]) == [ours, cleared]
    gone = removed([1], group=1)
    assert prefixes.of([removed([1], group=0), gone]) == [gone]


def test_nothing_is_passed_on_before_the_groups_are_described():
    assert PrefixEvents().of([stored([1], group=0), removed([1], group=0)]) == []


def test_what_is_passed_on_is_published_again():
    live, replay, again, again_replay = free_ports(4)
    engine, republisher = (
        ZmqEventPublisher(0, f"tcp://*:{first}", f"tcp://*:{second}", topic="kv@pod@model")
        for first, second in ((live, replay), (again, again_replay))
    )
    decode = msgspec.msgpack.Decoder(KVEventBatch).decode
    source, router = (
        Subscriber(f"tcp://127.0.0.1:{first}", f"tcp://127.0.0.1:{second}", decode, "kv@", 60)
        for first, second in ((live, replay), (again, again_replay))
    )
    events = [described(0, groups=2), described(1, "tail", tail=3, groups=2)]
    events += [stored([1]), stored([1], group=1)]
    engine.publish(KVEventBatch(ts=1.0, events=events))
    engine.publish(KVEventBatch(ts=2.0, events=[removed([1], group=1)]))
    engine.publish(KVEventBatch(ts=3.0, events=[removed([1])]))
    engine._event_queue.join()
    pass_on(source, PrefixEvents(), republisher, timeout_s=0.0)
    republisher._event_queue.join()
    batches = list(router.batches(timeout_s=0.0))
    for used in (source, router):
        used.close()
    for used in (engine, republisher):
        used.shutdown()
    assert [(batch.ts, [type(event) for event in batch.events]) for batch in batches] == [
        (1.0, [BlockStored]),
        (3.0, [BlockRemoved]),
    ]
    assert all(event.group_idx == 0 for batch in batches for event in batch.events)


def test_a_gap_is_told_as_an_empty_cache():
    live, replay, again, again_replay = free_ports(4)
    engine = ZmqEventPublisher(0, f"tcp://*:{live}", f"tcp://*:{replay}", buffer_steps=1)
    republisher = ZmqEventPublisher(0, f"tcp://*:{again}", f"tcp://*:{again_replay}")
    decode = msgspec.msgpack.Decoder(KVEventBatch).decode
    source, router = (
        Subscriber(f"tcp://127.0.0.1:{first}", f"tcp://127.0.0.1:{second}", decode, "", 60)
        for first, second in ((live, replay), (again, again_replay))
    )
    engine.publish(KVEventBatch(ts=1.0, events=[stored([1])]))
    engine.publish(KVEventBatch(ts=2.0, events=[stored([1])]))
    engine._event_queue.join()
    pass_on(source, PrefixEvents(), republisher, timeout_s=0.0)
    republisher._event_queue.join()
    (batch,) = router.batches(timeout_s=0.0)
    for used in (source, router):
        used.close()
    for used in (engine, republisher):
        used.shutdown()
    assert [type(event) for event in batch.events] == [AllBlocksCleared]
