# SPDX-License-Identifier: Apache-2.0
"""Publishes an engine's KV events again for routers that know no KV cache groups::

    python -m vllm_ascend.kv_events.relay --endpoint tcp://127.0.0.1:5557 \
        --replay-endpoint tcp://127.0.0.1:5558 --publish tcp://*:5559 --topic kv@POD@MODEL

Such routers take every ``BlockStored`` for a piece of a prefix and every ``BlockRemoved`` for its
end. Of several groups, they would forget a prefix whenever some window moves on. This passes on one
group that holds whole prefixes, and leaves out the rest: what a router then finds is never less
than what the engine would hit, and more only where a tail is missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import typer
from vllm.distributed.kv_events import AllBlocksCleared, KVEventBatch, ZmqEventPublisher
from vllm.logger import init_logger

from vllm_ascend.kv_events.layout import read_description
from vllm_ascend.kv_events.subscriber import MissedEventsError, Subscriber

_logger = init_logger("vllm.plugins.vllm_ascend_backport")
_POLL_SECONDS = 1.0


class PrefixEvents:
    """Picks the events of the first group that holds whole prefixes."""

    def __init__(self) -> None:
        self._group: int | None = None

    def of(self, events: Iterable[Any]) -> list[Any]:
        """Return those of the events that such a router should see."""
        return [event for event in events if self._is_passed_on(event)]

    def _is_passed_on(self, event: Any) -> bool:
        if getattr(event, "block_hashes", None) is None:
            return True  # everything was cleared
        if not event.block_hashes:
            description = read_description(event.block_size, event.extra_keys)
            if self._group is None and description and description[0].rule == "prefix":
                self._group = event.group_idx
            return False
        return event.group_idx == self._group


def relay(
    endpoint: Annotated[str, typer.Option(help="The engine's events, as seen from here.")],
    replay_endpoint: Annotated[str, typer.Option(help="The engine's replay endpoint.")],
    publish: Annotated[str, typer.Option(help="Where to publish, e.g. tcp://*:5559.")],
    topic: Annotated[str, typer.Option(help="The topic to subscribe to, and to publish.")] = "",
    publish_replay: Annotated[
        str | None, typer.Option(help="Where to answer requests for past batches.")
    ] = None,
) -> None:
    """Pass on until interrupted."""
    decode = msgspec.msgpack.Decoder(KVEventBatch).decode
    subscriber = Subscriber(endpoint, replay_endpoint, decode, topic)
    publisher = ZmqEventPublisher(0, publish, publish_replay, topic=topic)
    prefixes = PrefixEvents()
    try:
        while True:
            pass_on(subscriber, prefixes, publisher)
    except KeyboardInterrupt:
        pass
    finally:
        subscriber.close()
        publisher.shutdown()


def pass_on(
    subscriber: Subscriber,
    prefixes: PrefixEvents,
    publisher: ZmqEventPublisher,
    timeout_s: float = _POLL_SECONDS,
) -> None:
    """Pass on what comes, until nothing has come for ``timeout_s``, or something was missed."""
    try:
        for batch in subscriber.batches(timeout_s):
            batch.events = prefixes.of(batch.events)
            if batch.events:
                publisher.publish(batch)
    except MissedEventsError as error:
        _logger.warning("KV events: %s; telling that nothing is cached", error)
        publisher.publish(KVEventBatch(ts=time.time(), events=[AllBlocksCleared()]))


if __name__ == "__main__":
    typer.run(relay)
