# SPDX-License-Identifier: Apache-2.0
"""Starts upstream's proxy so that it hands X-data-parallel-rank on: proxy.py SCRIPT [OPTIONS ...]

The client's rank is one of the prefill side, to which the proxy sends with ``AsyncClient.post``.
The decode side, to which it streams, chooses its rank itself: the one that has the session's rows.
"""

import runpy
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import httpx
import uvicorn

HEADER = b"x-data-parallel-rank"
_rank: ContextVar[str | None] = ContextVar("rank", default=None)


def remembering(app: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Return an ASGI application that remembers each request's rank while it is answered."""

    async def remember(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            _rank.set(next((v.decode() for k, v in scope["headers"] if k == HEADER), None))
        await app(scope, receive, send)

    return remember


def handing_on(post: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a ``post`` that adds the remembered rank to the headers."""

    async def post_with_rank(client: Any, url: Any, **options: Any) -> Any:
        rank = _rank.get()
        if rank is not None:
            options["headers"] = {**(options.get("headers") or {}), HEADER.decode(): rank}
        return await post(client, url, **options)

    return post_with_rank


def main() -> None:
    """Run the script with the options behind it."""
    if len(sys.argv) < 2:
        sys.exit("proxy: name the script of upstream's proxy, and its options behind it")
    serve = uvicorn.run
    uvicorn.run = lambda app, **options: serve(remembering(app), **options)
    httpx.AsyncClient.post = handing_on(httpx.AsyncClient.post)  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
