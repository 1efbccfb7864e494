# SPDX-License-Identifier: Apache-2.0
"""Many clients of one server at once: some wait for the whole answer, some stream, some leave."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.e2e.server.server import Server

_PATIENCE_S = 300


@dataclass
class Ending:
    """How a request ended for its client.

    Attributes:
        status: Of HTTP; ``None`` if the connection broke before there was one.
        token_ids: Of the answer, as far as it came.
        usage: What the server said of it.
        error: What the server, or else the connection, said was wrong; ``None`` if nothing.
        time: When it ended, by ``time.monotonic()``.
    """

    status: int | None = None
    token_ids: list[int] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    time: float = 0.0

    @property
    def cached(self) -> int:
        """Hit tokens (vLLM leaves zero out)."""
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def http_client() -> httpx.AsyncClient:
    """Return a client with a connection for every request.

    A connection that is used again may be closed by the server in the moment of its use.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(timeout=_PATIENCE_S, limits=limits, trust_env=False)


async def ask(http: httpx.AsyncClient, server: Server, **body: Any) -> Ending:
    """Send a completion and tell how it ended, whatever happens. Streams if the body says so."""
    ending = Ending()
    url, body = f"{server.url}/v1/completions", server.body(**body)
    try:
        if body.get("stream"):
            body["stream_options"] = {"include_usage": True}
            await _stream(http, url, body, ending)
        else:
            response = await http.post(url, json=body)
            ending.status = response.status_code
            _take(response.json(), ending)
    except httpx.HTTPError as error:
        ending.error = type(error).__name__
    ending.time = time.monotonic()
    return ending


async def _stream(http: httpx.AsyncClient, url: str, body: dict[str, Any], ending: Ending) -> None:
    is_done = False
    async with http.stream("POST", url, json=body) as response:
        ending.status = response.status_code
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            is_done |= data == "[DONE]"
            if data and not is_done:
                _take(json.loads(data), ending)
    if not is_done and ending.error is None:
        ending.error = "the stream broke off"


def _take(said: dict[str, Any], ending: Ending) -> None:
    """Add what an answer, or an event of a stream, says."""
    if "error" in said:
        ending.error = said["error"]["message"]
    for choice in said.get("choices", ()):
        ending.token_ids += choice["token_ids"] or []
    ending.usage = said.get("usage") or ending.usage


async def leave(server: Server, num_events: int = 0, **body: Any) -> None:
    """Send a completion and hang up.

    Args:
        num_events: Parts of a stream to wait for; with 0 the client leaves as soon as all is sent.
    """
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    content = json.dumps(server.body(**body)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()
    for _ in range(num_events):
        await reader.readuntil(b"data: ")
    writer.close()
