# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend relay``: KV events for routers that know no KV cache groups."""

from __future__ import annotations

import errno
import re
from typing import Annotated, Any

import typer

from vllm_ascend.kv_events.bound import Bound

_ADDRESS = re.compile(r"tcp://(?P<host>\*|[^:*]+|\[[^]]+\]):[1-9]\d{0,4}|(ipc|inproc)://.+")
_WILDCARD = "tcp://*:"
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.ENODEV)


def _to_listen_on(address: str | None) -> str | None:
    if address is not None and not _ADDRESS.fullmatch(address):
        raise typer.BadParameter(f"{address!r} is not tcp://HOST:PORT or ipc://PATH")
    return address


def _to_connect_to(address: str) -> str:
    _to_listen_on(address)
    if address.startswith(_WILDCARD):
        raise typer.BadParameter(f"{address!r} names no host to connect to")
    return address


def _option(text: str, check: Any) -> Any:
    return typer.Option(help=text, callback=check)


def relay(
    endpoint: Annotated[
        str, _option("The engine's events, e.g. tcp://127.0.0.1:5557.", _to_connect_to)
    ],
    replay_endpoint: Annotated[
        str,
        _option("The engine's replay endpoint, e.g. tcp://127.0.0.1:5657.", _to_connect_to),
    ],
    publish: Annotated[
        str, _option("The address to publish on, e.g. tcp://*:5559.", _to_listen_on)
    ],
    connect: Annotated[
        bool,
        typer.Option(
            "--connect", help="The router listens on --publish: connect to it, do not listen."
        ),
    ] = False,
    topic: Annotated[str, typer.Option(help="The topic to subscribe to, and to publish.")] = "",
    publish_replay: Annotated[
        str | None,
        _option("The address to answer requests for past batches on.", _to_listen_on),
    ] = None,
    bound: Annotated[
        Bound | None,
        typer.Option(
            help="Publish what would be hit, tails and all: never less (upper), or never more "
            "(lower). Without it: every cached prefix."
        ),
    ] = None,
) -> None:
    """Publish an engine's KV events for a router that knows no KV cache groups."""
    # Here, not above: python -m vllm_ascend must not import vLLM to list its commands.
    import zmq

    from vllm_ascend.kv_events.relay import RelayPublisher, relay_events

    if connect and publish.startswith(_WILDCARD):
        raise typer.BadParameter(
            f"{publish!r} names no host to connect to", param_hint="'--publish'"
        )
    try:
        publisher = RelayPublisher(publish, publish_replay, topic, connects=connect)
    except zmq.ZMQError as error:
        options = "'--publish'" + (" / '--publish-replay'" if publish_replay else "")
        raise typer.BadParameter(
            _why_not(error, publish, publish_replay), param_hint=options
        ) from error
    how = "connecting to the router at" if connect else "listening on"
    typer.echo(f"relay: {how} {publish}; reading the engine's events from {endpoint}", err=True)
    relay_events(endpoint, replay_endpoint, publisher, topic=topic, bound=bound)


def _why_not(error: Exception, *addresses: str | None) -> str:
    """Return in words why addresses cannot be used."""
    named = " and ".join(filter(None, addresses))
    if getattr(error, "errno", None) in _NOT_OURS:
        return (
            f"{named} is not an address of this machine. To reach a router that listens there, add "
            "--connect"
        )
    return f"{named}: {error}"
