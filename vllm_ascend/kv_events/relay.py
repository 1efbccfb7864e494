# SPDX-License-Identifier: Apache-2.0
"""Publishes an engine's KV events again for routers that know no KV cache groups.

Such a router keeps one set of block hashes per engine, and of a hybrid model's several groups it
would forget a prefix whenever some window moves on. The relay passes on one group that holds whole
prefixes, and leaves out the rest: what a router then finds is never less than what the engine would
hit, and more only where a tail is missing. With a bound, tails count as well
(:mod:`vllm_ascend.kv_events.bounds`): a prefix whose tail is gone is removed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
import zmq
from vllm.distributed.kv_events import AllBlocksCleared, KVEventBatch, ZmqEventPublisher
from vllm.logger import init_logger

from vllm_ascend.kv_events.bound import Bound
from vllm_ascend.kv_events.bounds import BoundEvents
from vllm_ascend.kv_events.layout import read_description
from vllm_ascend.kv_events.subscriber import MissedEventsError, Subscriber

_logger = init_logger("vllm.plugins.vllm_ascend_backport")
_POLL_SECONDS = 1.0
# Batches bear the rank of their engine: the relay publishes at the address that it is given.
_NO_RANK = 0


class View(Protocol):
    """Makes of an engine's events those that a router gets."""

    def of(self, events: Iterable[Any]) -> list[Any]:
        """Return them, in the order in which they are to be published."""

    def forget(self) -> None:
        """Start over: events were missed, and the router is told that nothing is cached."""


class PrefixEvents:
    """Picks the events of the first group that holds whole prefixes."""

    def __init__(self) -> None:
        self._group: int | None = None

    def of(self, events: Iterable[Any]) -> list[Any]:
        """Return those of the events that such a router should see."""
        return [event for event in events if self._is_passed_on(event)]

    def forget(self) -> None:
        """Keep which group it is; nothing else is remembered."""

    def _is_passed_on(self, event: Any) -> bool:
        if getattr(event, "block_hashes", None) is None:
            return True  # everything was cleared
        if not event.block_hashes:
            description = read_description(event.block_size, event.extra_keys)
            if self._group is None and description and description[0].rule == "prefix":
                self._group = event.group_idx
            return False
        return event.group_idx == self._group


class RelayPublisher(ZmqEventPublisher):
    """vLLM's publisher, listening on its address unless it is told to connect to it.

    vLLM's own listens on addresses with a wildcard alone. On ``tcp://127.0.0.1:5559`` it would wait
    for a router that listens there, for ever and without a word.
    """

    def __init__(
        self, address: str, replay_address: str | None, topic: str = "", *, connects: bool = False
    ) -> None:
        """Open the sockets.

        Args:
            address: Where batches are published.
            replay_address: Where requests for past batches are answered, if anywhere.
            topic: What they are published under.
            connects: The router listens on ``address``.

        Raises:
            zmq.ZMQError: An address cannot be used.
        """
        self._connects = connects
        super().__init__(_NO_RANK, address, replay_address, topic=topic)

    def _socket_setup(self) -> None:
        self._pub = self._ctx.socket(zmq.PUB)
        self._pub.set_hwm(self._hwm)
        if self._connects:
            self._pub.connect(self._endpoint)
        else:
            self._pub.bind(self._endpoint)
        super()._socket_setup()  # the other socket: it leaves one that is there alone


def relay_events(
    endpoint: str,
    replay_endpoint: str,
    publisher: ZmqEventPublisher,
    *,
    topic: str,
    bound: Bound | None,
) -> None:
    """Pass on an engine's events until interrupted; closes the publisher.

    Args:
        endpoint: Where the engine publishes, as seen from here.
        replay_endpoint: Where it answers requests for past batches.
        publisher: Takes what a router gets.
        topic: The topic to subscribe to.
        bound: What is published instead of every cached prefix.
    """
    decode = msgspec.msgpack.Decoder(KVEventBatch).decode
    subscriber = Subscriber(endpoint, replay_endpoint, decode, topic)
    view = PrefixEvents() if bound is None else BoundEvents(bound)
    # A shell lets what it starts in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while True:
            pass_on(subscriber, view, publisher)
    except KeyboardInterrupt:
        pass
    finally:
        subscriber.close()
        publisher.shutdown()


def pass_on(
    subscriber: Subscriber,
    view: View,
    publisher: ZmqEventPublisher,
    timeout_s: float = _POLL_SECONDS,
) -> None:
    """Pass on what comes, until nothing has come for ``timeout_s``, or something was missed."""
    try:
        for batch in subscriber.batches(timeout_s):
            batch.events = view.of(batch.events)
            if batch.events:
                publisher.publish(batch)
    except MissedEventsError as error:
        _logger.warning("KV events: %s; telling that nothing is cached", error)
        view.forget()
        publisher.publish(_nothing_is_cached(error.next_batch.data_parallel_rank))


def _nothing_is_cached(rank: int | None) -> KVEventBatch:
    """Return what makes a router forget all that it knows of a rank of the engine."""
    return KVEventBatch(ts=time.time(), events=[AllBlocksCleared()], data_parallel_rank=rank)
