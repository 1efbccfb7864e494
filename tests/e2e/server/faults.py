# SPDX-License-Identifier: Apache-2.0
"""Something happens to a server under load: what becomes of its clients, and of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import httpx

from tests.e2e.server.clients import Ending, ask, http_client
from tests.e2e.server.server import Server

NUM_CLIENTS = 24
_PATIENCE_S = 300
# Nobody waits for ever; on an idle machine it is a second.
_IN_GOOD_TIME_S = 300
_ENGINE_IS_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
# Far more than a server writes before anything happens to it.
_MANY_TOKENS = 3000


async def strike_under_load(server: Server, strike: Callable[[], None]) -> list[Ending]:
    """Strike when all clients wait for a long answer, every other one reading a stream.

    Returns:
        How they ended, by client; ``time`` counts from the strike. Those with even numbers stream.
    """
    async with http_client() as http:
        asking = [
            asyncio.create_task(
                ask(
                    http,
                    server,
                    prompt=[16 + client] * 200,
                    max_tokens=_MANY_TOKENS,
                    stream=client % 2 == 0,
                )
            )
            for client in range(NUM_CLIENTS)
        ]
        try:
            await until_running(server, NUM_CLIENTS)
            strike()
            struck = time.monotonic()
            endings = await asyncio.wait_for(asyncio.gather(*asking), _PATIENCE_S)
        finally:
            for task in asking:
                task.cancel()
    for ending in endings:
        ending.time -= struck
    return endings


def check_all_were_told(endings: Sequence[Ending]) -> None:
    """Check that every client was told of a dead engine, in good time and in the way of HTTP."""
    assert len(endings) == NUM_CLIENTS
    for client, ending in enumerate(endings):
        # A stream has begun with 200; what went wrong is its last event.
        expected = httpx.codes.OK if client % 2 == 0 else httpx.codes.INTERNAL_SERVER_ERROR
        assert (ending.status, ending.error) == (expected, _ENGINE_IS_DEAD)
        assert ending.time < _IN_GOOD_TIME_S
    print(f"clients were told within {max(ending.time for ending in endings):.1f} s")


async def until_running(server: Server, num_requests: int) -> None:
    """Wait until exactly so many requests run."""
    deadline = time.monotonic() + _PATIENCE_S
    running = partial(server.metric, "vllm:num_requests_running", missing=0)
    while await asyncio.to_thread(running) != num_requests:
        assert time.monotonic() < deadline, f"{num_requests} requests never ran at once"
        await asyncio.sleep(0.1)


def until_gone(server: Server, shared_memory: set[Path]) -> int:
    """Wait until a server and all of its processes are gone, with their shared memory.

    Args:
        shared_memory: Files that must not be left.

    Returns:
        The exit code of the server.
    """
    exit_code = server.process.wait(timeout=_PATIENCE_S)
    deadline = time.monotonic() + _PATIENCE_S
    while server.processes() or any(map(Path.exists, shared_memory)):
        assert time.monotonic() < deadline, (server.processes(), shared_memory)
        time.sleep(0.1)
    return exit_code
