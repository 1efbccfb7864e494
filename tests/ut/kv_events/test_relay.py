# SPDX-License-Identifier: Apache-2.0
"""What is passed on to routers that know no groups."""

from __future__ import annotations

import time

import msgspec
import pytest
import zmq
from typer.testing import CliRunner
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    ZmqEventPublisher,
)

from tests.ut.evaluation.kv_events.test_prefix_index import TOKENS, UNIT, described, removed, stored
from tests.ut.kv_events.ports import free_ports
from vllm_ascend.__main__ import app
from vllm_ascend.kv_events import relay
from vllm_ascend.kv_events.bound import Bound
from vllm_ascend.kv_events.bounds import BoundEvents
from vllm_ascend.kv_events.relay import PrefixEvents, RelayPublisher, pass_on
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


def relayed(rank: int, batches: list[list[KVEventBatch]]) -> list[KVEventBatch]:
    """Return what a router gets of an engine's rank that keeps its last batch alone.

    Args:
        rank: The data-parallel rank, whose ports are that much higher.
        batches: What the engine publishes before each turn of the relay.
    """
    live, replay, again, again_replay = free_ports(4)
    engine = ZmqEventPublisher(
        rank, f"tcp://*:{live - rank}", f"tcp://*:{replay - rank}", buffer_steps=1
    )
    republisher = RelayPublisher(f"tcp://*:{again}", f"tcp://*:{again_replay}")
    decode = msgspec.msgpack.Decoder(KVEventBatch).decode
    source, router = (
        Subscriber(f"tcp://127.0.0.1:{first}", f"tcp://127.0.0.1:{second}", decode, "", 60)
        for first, second in ((live, replay), (again, again_replay))
    )
    for group in batches:
        for batch in group:
            engine.publish(batch)
        engine._event_queue.join()
        pass_on(source, PrefixEvents(), republisher, timeout_s=0.0)
    republisher._event_queue.join()
    received = list(router.batches(timeout_s=0.0))
    for used in (source, router):
        used.close()
    for used in (engine, republisher):
        used.shutdown()
    return received


@pytest.mark.parametrize("rank", (0, 1, 3))
def test_a_gap_is_told_as_an_empty_cache_of_the_rank_that_has_it(rank):
    """The relay makes this batch itself, before it has passed on any other."""
    # Later than what the relay says of the gap: times tell a restarted publisher from a late batch.
    ts = time.time() + 3600
    lost = KVEventBatch(ts=ts, events=[stored([1])])
    kept = KVEventBatch(ts=ts + 1, events=[described(0, groups=1), stored([1])])
    batches = relayed(rank, [[lost, kept], []])
    told = [[type(event) for event in batch.events] for batch in batches]
    assert told == [[AllBlocksCleared], [BlockStored]]
    assert [batch.data_parallel_rank for batch in batches] == [rank, rank]


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


@pytest.mark.parametrize("host", ("*", "127.0.0.1", "localhost"))
def test_the_relay_listens_where_it_publishes(host: str):
    """vLLM's publisher connects to an address without a wildcard, and waits there for ever."""
    (port,) = free_ports(1)
    publisher = RelayPublisher(f"tcp://{host}:{port}", None)
    router = zmq.Context.instance().socket(zmq.SUB)
    router.subscribe("")
    router.connect(f"tcp://127.0.0.1:{port}")
    try:
        assert receives(router, publisher)
    finally:
        router.close(linger=0)
        publisher.shutdown()


def test_the_relay_connects_to_a_router_that_listens_where_it_is_told_to():
    router = zmq.Context.instance().socket(zmq.SUB)
    router.subscribe("")
    port = router.bind_to_random_port("tcp://127.0.0.1")
    publisher = RelayPublisher(f"tcp://127.0.0.1:{port}", None, connects=True)
    try:
        assert receives(router, publisher)
    finally:
        router.close(linger=0)
        publisher.shutdown()


def receives(router: zmq.Socket, publisher: ZmqEventPublisher) -> bool:
    """Whether a router gets what is published, once the two have found each other."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        publisher.publish(KVEventBatch(ts=1.0, events=[AllBlocksCleared()]))
        if router.poll(50):
            return True
    return False


@pytest.fixture(autouse=True)
def nothing_is_relayed(monkeypatch):
    """What options are good for is not waited for: the command would go on until interrupted."""
    monkeypatch.setattr(relay, "relay_events", lambda *_, **__: None)


def run_relay(change: dict[str, str], *flags: str):
    """Run the command with good options but for those in ``change``."""
    engine, replay, publish = (f"tcp://127.0.0.1:{port}" for port in free_ports(3))
    options = {"--endpoint": engine, "--replay-endpoint": replay, "--publish": publish} | change
    arguments = [word for pair in options.items() for word in pair]
    environment = {"COLUMNS": "200", "TERM": "dumb"}
    return CliRunner().invoke(app, ["relay", *arguments, *flags], env=environment)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--endpoint": "pod:5557"}, "'pod:5557' is not tcp://HOST:PORT"),
        ({"--endpoint": "tcp://*:5557"}, "'tcp://*:5557' names no host to connect to"),
        ({"--replay-endpoint": "tcp://*:5557"}, "'tcp://*:5557' names no host to connect to"),
        ({"--publish": "tcp://*"}, "'tcp://*' is not tcp://HOST:PORT"),
        ({"--bound": "exact"}, "'exact' is not one of 'upper', 'lower'"),
        # Of a net that is kept for examples: no machine has it.
        ({"--publish": "tcp://192.0.2.1:5559"}, "tcp://192.0.2.1:5559 is not an address of this"),
    ],
)
def test_bad_input_ends_with_one_line(change: dict[str, str], message: str):
    result = run_relay(change)
    assert result.exit_code == 2
    (option,) = change
    assert option in result.output and message in " ".join(result.output.split())
    assert not isinstance(result.exception, zmq.ZMQError)


def test_a_wildcard_is_no_router_to_connect_to():
    result = run_relay({"--publish": "tcp://*:5559"}, "--connect")
    assert result.exit_code == 2
    assert "'tcp://*:5559' names no host to connect to" in " ".join(result.output.split())


def test_a_port_that_is_taken_ends_with_one_line():
    socket = zmq.Context.instance().socket(zmq.PUB)
    taken = f"tcp://*:{socket.bind_to_random_port('tcp://*')}"
    result = run_relay({"--publish": taken})
    socket.close(linger=0)
    assert result.exit_code == 2
    assert "--publish" in result.output and "Address already in use" in result.output
    assert not isinstance(result.exception, zmq.ZMQError)
