# SPDX-License-Identifier: Apache-2.0
"""The subscriber against vLLM's own publisher: late, cut off, restarted."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest
from vllm.distributed.kv_events import BlockRemoved, KVEventBatch, ZmqEventPublisher
from zmq import ZMQError

from tests.ut.kv_events.ports import free_ports
from vllm_ascend.kv_events.subscriber import MissedEventsError, Subscriber

_decode = msgspec.msgpack.Decoder(KVEventBatch).decode
PATIENCE = 300.0


class Source:
    """A publisher that can be stopped and started on the same ports."""

    def __init__(self) -> None:
        self.ports = free_ports(2)
        self.time = 0.0
        self.publisher: ZmqEventPublisher | None = None

    def start(self, buffer_steps: int = 100) -> None:
        live, replay = self.ports
        deadline = time.monotonic() + PATIENCE
        while self.publisher is None:
            try:
                self.publisher = ZmqEventPublisher(
                    0, f"tcp://*:{live}", f"tcp://*:{replay}", buffer_steps=buffer_steps
                )
            except ZMQError as error:  # noqa: PERF203 - the one before may still be closing
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        if self.publisher is not None:
            self.publisher.shutdown()
            self.publisher = None

    def publish(self, *names: int) -> None:
        assert self.publisher is not None
        for name in names:
            self.time += 1.0
            batch = KVEventBatch(ts=self.time, events=[BlockRemoved([name], "GPU")])
            self.publisher.publish(batch)
        self.publisher._event_queue.join()  # they are sent, or in the buffer

    def subscriber(self, *, replays: bool = True, timeout_s: float = 5.0) -> Subscriber:
        live, replay = (f"tcp://127.0.0.1:{port}" for port in self.ports)
        return Subscriber(live, replay if replays else None, _decode, replay_timeout_s=timeout_s)


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    source.start()
    yield source
    source.stop()


def names(subscriber: Subscriber, count: int) -> list[int]:
    """The next batches' names; fewer if no more come."""
    found: list[int] = []
    for batch in subscriber.batches(PATIENCE):
        found += batch.events[0].block_hashes
        if len(found) == count:
            break
    return found


def publish_until_noticed(source: Source, subscriber: Subscriber, first: int) -> list[int]:
    """Publish name by name, as connecting takes its time; return what came with the first one."""
    for name in range(first, first + 200):
        source.publish(name)
        found = [batch.events[0].block_hashes[0] for batch in subscriber.batches(0.05)]
        if found:
            return found
    raise AssertionError("nothing came")


def test_a_late_subscriber_gets_everything_once(source: Source):
    source.publish(1, 2, 3)
    subscriber = source.subscriber()
    assert names(subscriber, 3) == [1, 2, 3]
    found = publish_until_noticed(source, subscriber, 4)
    assert found == list(range(4, 4 + len(found)))
    subscriber.close()


def test_a_gap_is_filled_from_the_buffer(source: Source):
    source.publish(1)
    subscriber = source.subscriber()
    assert names(subscriber, 1) == [1]
    publish_until_noticed(source, subscriber, 2)
    last = subscriber._next_sequence
    subscriber._live.disconnect(f"tcp://127.0.0.1:{source.ports[0]}")
    source.publish(last + 1, last + 2)
    subscriber._live.connect(f"tcp://127.0.0.1:{source.ports[0]}")
    found = publish_until_noticed(source, subscriber, last + 3)
    assert found == list(range(last + 1, last + 1 + len(found)))
    subscriber.close()


def test_a_subscriber_that_is_there_first_takes_no_old_answer_for_a_new_one(source: Source):
    """Its first question is answered by nobody, or much later than it waits."""
    source.stop()
    subscriber = source.subscriber(timeout_s=0.05)
    assert not list(subscriber.batches(0.0))
    subscriber._replay_timeout_ms = int(PATIENCE * 1000)
    source.start()
    time.sleep(0.5)  # the late answer: nothing is cached yet
    publish_until_noticed(source, subscriber, 1)
    last = subscriber._next_sequence
    source.publish(last + 1, last + 2)
    subscriber._live.recv_multipart()  # lost on the way
    assert names(subscriber, 2) == [last + 1, last + 2]
    subscriber.close()


def test_what_the_buffer_has_lost_is_an_error(source: Source):
    source.stop()
    source.start(buffer_steps=2)
    source.publish(1, 2, 3, 4)
    subscriber = source.subscriber()
    with pytest.raises(MissedEventsError, match="batches 0 to 1 are not kept"):
        names(subscriber, 4)
    assert names(subscriber, 2) == [3, 4]
    subscriber.close()


def test_without_a_buffer_every_gap_is_an_error(source: Source):
    source.publish(1, 2)
    subscriber = source.subscriber(replays=False)
    with pytest.raises(MissedEventsError, match="batches 0 to"):
        publish_until_noticed(source, subscriber, 3)
    assert len(names(subscriber, 1)) == 1
    subscriber.close()


def test_a_restart_is_an_error_and_then_followed_from_its_start(source: Source):
    # More than can be lost until the restarted publisher is found: who lost just as many as he
    # had read before would see the numbers go on.
    before = list(range(1, 91))
    source.publish(*before)
    subscriber = source.subscriber()
    assert names(subscriber, len(before)) == before
    publish_until_noticed(source, subscriber, 91)
    source.stop()
    source.start()
    with pytest.raises(MissedEventsError, match="started anew"):
        publish_until_noticed(source, subscriber, 301)
    assert names(subscriber, 1) == [301]
    subscriber.close()


@pytest.mark.parametrize("replays", [True, False])
def test_a_restart_is_noticed_even_where_the_numbers_go_on(source: Source, *, replays: bool):
    """Just as many batches of the new publisher are lost as were read of the old one."""
    source.publish(1)
    subscriber = source.subscriber(replays=replays)
    publish_until_noticed_or_missed(source, subscriber)
    read = subscriber._next_sequence
    source.stop()
    source.start()
    source.publish(*range(301, 301 + read))
    assert not list(subscriber.batches(1.0))  # it connects again, and nothing is published
    with pytest.raises(MissedEventsError, match="started anew"):
        publish_until_noticed(source, subscriber, 401)
    assert names(subscriber, 1) == [301] if replays else names(subscriber, 1)
    subscriber.close()


def test_a_lost_connection_alone_is_no_restart(source: Source):
    source.publish(1)
    subscriber = source.subscriber()
    publish_until_noticed(source, subscriber, 2)
    last = subscriber._next_sequence
    subscriber._has_lost_connection = True
    found = publish_until_noticed(source, subscriber, last + 1)
    assert found == list(range(last + 1, last + 1 + len(found)))
    subscriber.close()


def publish_until_noticed_or_missed(source: Source, subscriber: Subscriber) -> None:
    """Read something; who cannot ask for past batches misses what came before he connected."""
    with suppress(MissedEventsError):
        publish_until_noticed(source, subscriber, 2)
    publish_until_noticed(source, subscriber, 200)
