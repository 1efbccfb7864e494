# SPDX-License-Identifier: Apache-2.0
"""Upstream's proxy as the manifests start it: the client's rank reaches the prefill side alone."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.upstream.mooncake_instances import free_port
from tests.upstream.sources import unpacked

LAUNCHER = Path(__file__).parents[2] / "deploy" / "base" / "proxy.py"
SCRIPT = "examples/disaggregated_prefill_v1/load_balance_proxy_server_example.py"
# Of the release that the manifests with a proxy are for.
RELEASE = "0.20.2rc1"


@contextmanager
def server() -> Iterator[tuple[int, list[tuple[str | None, bool]]]]:
    """Answer completions; yield the port, and of each request the rank and who had computed it."""
    asked: list[tuple[str | None, bool]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told = request.get("kv_transfer_params") or {}
            asked.append(
                (self.headers["X-data-parallel-rank"], bool(told.get("do_remote_prefill")))
            )
            choice = {"index": 0, "text": "x", "finish_reason": "length"}
            params = {"do_remote_prefill": True, "remote_block_ids": [[1]]}
            answer = json.dumps({"choices": [choice], "kv_transfer_params": params}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            pass

    answering = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=answering.serve_forever, daemon=True).start()
    try:
        yield answering.server_address[1], asked
    finally:
        answering.shutdown()


@contextmanager
def proxy(prefill_port: int, decode_port: int) -> Iterator[str]:
    """Run the proxy; yield its address."""
    port = free_port()
    options = {
        "--port": port,
        "--prefiller-hosts": "127.0.0.1",
        "--prefiller-ports": prefill_port,
        "--decoder-hosts": "127.0.0.1",
        "--decoder-ports": decode_port,
    }
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, str(LAUNCHER), str(unpacked(RELEASE) / SCRIPT), *words]
    with subprocess.Popen(command) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(300):
                assert process.poll() is None, "the proxy has ended"
                try:
                    httpx.get(f"{address}/healthcheck")
                    break
                except httpx.ConnectError:
                    time.sleep(0.1)
            yield address
        finally:
            process.terminate()


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_s_rank_reaches_the_prefill_side_alone(stream: bool):
    with (
        server() as (prefill_port, of_prefill),
        server() as (decode_port, of_decode),
        proxy(prefill_port, decode_port) as address,
    ):
        request = {"model": "m", "prompt": "p", "max_tokens": 2, "stream": stream}
        for headers in ({"X-data-parallel-rank": "3"}, {}):
            answer = httpx.post(f"{address}/v1/completions", json=request, headers=headers)
            assert answer.status_code == 200
    assert of_prefill == [("3", False), (None, False)]
    assert of_decode == [(None, True), (None, True)]
