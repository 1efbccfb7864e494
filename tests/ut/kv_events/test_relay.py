# SPDX-License-Identifier: Apache-2.0
"""What is passed on to routers that know no groups."""

from __future__ import annotations

import msgspec
import pytest
import typer
import zmq
from typer.testing import CliRunner
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    ZmqEventPublisher,
)

from tests.ut.kv_events.ports import free_ports
from tests.ut.kv_events.test_prefix_index import TOKENS, UNIT, described, removed, stored
from vllm_ascend.kv_events.bounds import Bound, BoundEvents
from vllm_ascend.kv_events.relay import PrefixEvents, pass_on, relay
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


# A tail is the last unit before a boundary.
_GROUPS = described(0, groups=2), described(1, "tail", tail=3, groups=2)


def chains(events) -> list:
    """What is told of blocks: names stored with their parents, and names removed."""
    return [
        (event.block_hashes, event.parent_block_hash)
        if isinstance(event, BlockStored)
        else event.block_hashes
        for event in events
    ]


def test_bounds_follow_tails():
    upper, lower = BoundEvents(Bound.UPPER), BoundEvents(Bound.LOWER)
    prefix = [*_GROUPS, stored([1, 2, 3])]
    assert upper.of(prefix) == lower.of(prefix) == []
    tail = [stored([2], first=1, group=1)]
    assert chains(upper.of(tail)) == [([1, 2], None)]
    assert lower.of(tail) == []
    first = [stored([1], group=1)]
    assert upper.of(first) == []
    assert chains(lower.of(first)) == [([1, 2], None)]
    gone = [removed([2], group=1)]
    assert chains(upper.of(gone)) == chains(lower.of(gone)) == [[2]]


def test_bounds_are_told_in_blocks_of_the_alignment():
    upper = BoundEvents(Bound.UPPER)
    events = upper.of(
        [
            described(0, groups=1, alignment=2 * UNIT),
            stored([1, 2, 3, 4, 5], keys=[("a", ("image", 1)), ("a", ("image", -3)), *[None] * 3]),
        ]
    )
    (event,) = events
    assert (event.block_hashes, event.block_size, event.group_idx) == ([2, 4], 2 * UNIT, 0)
    assert event.token_ids == TOKENS[: 4 * UNIT]
    assert event.extra_keys == [("a", ("image", 1)), None]


def test_bounds_start_over_when_everything_is_cleared_or_something_was_missed():
    upper = BoundEvents(Bound.UPPER)
    events = [*_GROUPS, stored([1]), stored([1], group=1)]
    assert chains(upper.of(events)) == [([1], None)]
    cleared, again = upper.of([AllBlocksCleared(), *events])
    assert isinstance(cleared, AllBlocksCleared) and again.block_hashes == [1]
    upper.forget()
    assert upper.of(events[2:]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--endpoint": "pod:5557"}, "'pod:5557' is not tcp://HOST:PORT"),
        ({"--publish": "tcp://*"}, "'tcp://*' is not tcp://HOST:PORT"),
        ({"--bound": "exact"}, "'exact' is not one of 'upper', 'lower'"),
        ({"--publish": "TAKEN"}, "Address already in use"),
    ],
)
def test_bad_input_ends_with_one_line(change: dict[str, str], message: str):
    engine, replay, publish = (f"tcp://127.0.0.1:{port}" for port in free_ports(3))
    socket = zmq.Context.instance().socket(zmq.PUB)
    taken = f"tcp://*:{socket.bind_to_random_port('tcp://*')}"
    options = {"--endpoint": engine, "--replay-endpoint": replay, "--publish": publish} | change
    arguments = [taken if word == "TAKEN" else word for pair in options.items() for word in pair]
    app = typer.Typer()
    app.command()(relay)
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"})
    socket.close(linger=0)
    assert result.exit_code == 2
    (option,) = change
    assert option in result.output and message in result.output
    assert not isinstance(result.exception, zmq.ZMQError)
