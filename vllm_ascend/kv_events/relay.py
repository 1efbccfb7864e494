# SPDX-License-Identifier: Apache-2.0
"""Publishes an engine's KV events again for routers that know no KV cache groups::

    python -m vllm_ascend.kv_events.relay --endpoint tcp://127.0.0.1:5557 \
        --replay-endpoint tcp://127.0.0.1:5558 --publish tcp://*:5559 --topic kv@POD@MODEL

Such routers take every ``BlockStored`` for a piece of a prefix and every ``BlockRemoved`` for its
end. Of several groups, they would forget a prefix whenever some window moves on. This passes on one
group that holds whole prefixes, and leaves out the rest: what a router then finds is never less
than what the engine would hit, and more only where a tail is missing. With ``--bound`` tails count
as well (:mod:`vllm_ascend.kv_events.bounds`): a prefix whose tail is gone is removed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Annotated, Any, Protocol

import msgspec
import typer
import zmq
from vllm.distributed.kv_events import AllBlocksCleared, KVEventBatch, ZmqEventPublisher
from vllm.logger import init_logger

from vllm_ascend.kv_events.bounds import Bound, BoundEvents
from vllm_ascend.kv_events.layout import read_description
from vllm_ascend.kv_events.subscriber import MissedEventsError, Subscriber

_logger = init_logger("vllm.plugins.vllm_ascend_backport")
_POLL_SECONDS = 1.0
_ADDRESS = re.compile(r"tcp://(\*|[^:*]+|\[[^]]+\]):[1-9]\d{0,4}|(ipc|inproc)://.+")


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


def _check_address(address: str | None) -> str | None:
    if address is not None and not _ADDRESS.fullmatch(address):
        raise typer.BadParameter(f"{address!r} is not tcp://HOST:PORT or ipc://PATH")
    return address


def _option(text: str) -> Any:
    return typer.Option(help=text, callback=_check_address)


def relay(
    endpoint: Annotated[str, _option("The engine's events, as seen from here.")],
    replay_endpoint: Annotated[str, _option("The engine's replay endpoint.")],
    publish: Annotated[str, _option("Where to publish, e.g. tcp://*:5559.")],
    topic: Annotated[str, typer.Option(help="The topic to subscribe to, and to publish.")] = "",
    publish_replay: Annotated[
        str | None, _option("Where to answer requests for past batches.")
    ] = None,
    bound: Annotated[
        Bound | None,
        typer.Option(
            help="Publish what would be hit, tails and all: never less (upper), or never more "
            "(lower). Left out: every cached prefix, whether it has its tail or not."
        ),
    ] = None,
) -> None:
    """Pass on until interrupted."""
    try:
        publisher = ZmqEventPublisher(0, publish, publish_replay, topic=topic)
    except zmq.ZMQError as error:
        addresses = " and ".join(filter(None, (publish, publish_replay)))
        options = "'--publish'" + (" / '--publish-replay'" if publish_replay else "")
        raise typer.BadParameter(f"{addresses}: {error}", param_hint=options) from error
    decode = msgspec.msgpack.Decoder(KVEventBatch).decode
    subscriber = Subscriber(endpoint, replay_endpoint, decode, topic)
    view = PrefixEvents() if bound is None else BoundEvents(bound)
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
        publisher.publish(KVEventBatch(ts=time.time(), events=[AllBlocksCleared()]))


if __name__ == "__main__":
    typer.run(relay)
