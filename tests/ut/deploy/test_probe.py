# SPDX-License-Identifier: Apache-2.0
"""What the pods answer to Kubernetes: against real servers and a real process table."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.ut.deploy.manifests import DEPLOY
from tests.ut.deploy.probe_script import probe

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {first}
vllm:num_requests_running{{engine="1",model_name="m"}} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} {second}
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} 7.0
"""


class Server:
    """An API server that answers as vLLM does, as well as it is told to.

    Attributes:
        base: Its URL.
        health: The status of /health.
        choices: What a completion contains.
        counts: Running and waiting requests that /metrics tells.
        posted: The bodies of completions asked for.
    """

    def __init__(self, port: int = 0) -> None:
        self.health = 200
        self.choices: list[dict] = [{"text": "2"}]
        self.counts: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.posted: list[dict] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                first, second = outer.counts()
                self.reply(
                    *{
                        "/health": (outer.health, ""),
                        "/healthcheck": (200, '{"status": "ok"}'),
                        "/v1/models": (200, json.dumps({"data": [{"id": "m"}]})),
                        "/metrics": (200, METRICS.format(first=first, second=second)),
                    }[self.path]
                )

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.posted.append(json.loads(body))
                self.reply(200, json.dumps({"choices": outer.choices}))

            def reply(self, status: int, text: str) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.base = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


def test_healthy_needs_200_of_every_server(server: Server):
    probe.healthy([server.base, server.base])
    server.health = 503
    with pytest.raises(probe.NotYetError, match="503"):
        probe.healthy([server.base])


def test_a_server_that_does_not_listen_is_not_healthy():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(probe.NotYetError):
        probe.healthy([f"http://127.0.0.1:{port}"])


def test_started_means_that_a_completion_came_back(server: Server):
    probe.generates(server.base, model_from=server.base, timeout=60)
    assert server.posted[0]["model"] == "m"
    assert server.posted[0]["max_tokens"] == 2  # so that one token is decoded, too
    server.choices = []
    with pytest.raises(probe.NotYetError, match="without choices"):
        probe.generates(server.base, model_from=server.base, timeout=60)


def test_a_server_that_is_healthy_but_hangs_has_not_started(server: Server):
    server.http.RequestHandlerClass.do_POST = lambda self: time.sleep(3)  # type: ignore[attr-defined]
    with pytest.raises(probe.NotYetError):
        probe.generates(server.base, model_from=server.base, timeout=0.2)


def test_requests_are_counted_over_all_engines_and_once(server: Server):
    server.counts = lambda: (3, 2)
    assert probe.unfinished_requests(server.base) == 5


def test_drain_waits_for_the_last_request(server: Server):
    left = iter([(2, 1), (1, 0), (0, 0)])
    server.counts = lambda: next(left)
    probe.drain(server.base, settle=0, seconds=30, interval=0.01)
    with pytest.raises(StopIteration):
        next(left)


def test_drain_gives_up_before_the_grace_period_does(server: Server):
    server.counts = lambda: (1, 0)
    begun = time.monotonic()
    probe.drain(server.base, settle=0, seconds=0.3, interval=0.05)
    assert time.monotonic() - begun < 25


def test_a_server_that_is_gone_is_drained(server: Server):
    base = server.base
    server.close()
    probe.drain(base, settle=0, seconds=30)
    server.http = Server().http  # for the fixture to close


def process_table(folder: Path, *titles: bytes) -> Path:
    """Lay out ``/proc`` with one process per title."""
    for number, title in enumerate(titles, start=100):
        (folder / str(number)).mkdir()
        (folder / str(number) / "cmdline").write_bytes(title)
    return folder


def test_a_worker_is_alive_while_all_its_engines_are(tmp_path: Path):
    table = process_table(
        tmp_path, b"VLLM::EngineCore_DP2", b"VLLM::EngineCore_DP3", b"VLLM::Worker_TP0", b"bash"
    )
    probe.engines_alive(2, table)
    with pytest.raises(probe.NotYetError, match="2 of 3 engine processes live"):
        probe.engines_alive(3, table)


def test_engines_are_found_by_the_title_that_vllm_gives_them():
    code = (
        "from vllm.utils.system_utils import set_process_title\n"
        "set_process_title('EngineCore_DP1')\n"
        "print('ready', flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert any("ready" in line for line in child.stdout)
        title = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        child.communicate("\n")
    assert title.startswith(probe.ENGINE_TITLE)


def test_a_worker_asks_its_leader(monkeypatch: pytest.MonkeyPatch):
    assert probe.serving_base() == "http://127.0.0.1:8000"
    monkeypatch.setenv("LWS_LEADER_ADDRESS", "prefill-0.prefill")
    monkeypatch.setenv("LWS_WORKER_INDEX", "0")
    assert probe.serving_base() == "http://127.0.0.1:8000"
    monkeypatch.setenv("LWS_WORKER_INDEX", "1")
    assert probe.serving_base() == "http://prefill-0.prefill:8000"


def test_an_unknown_host_is_waited_for_and_then_reported():
    assert probe.resolve("127.0.0.1", seconds=0) == "127.0.0.1"
    with pytest.raises(probe.NotYetError, match=r"no-such-host\.invalid"):
        probe.resolve("no-such-host.invalid", seconds=0)


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a pod does."""
    script = str(DEPLOY / "base" / "probe.py")
    environ = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, script, *arguments],
        capture_output=True,
        text=True,
        env=environ,
        timeout=300,
        check=False,
    )


def test_the_answer_is_the_exit_code_with_the_reason(server: Server):
    assert run_script("drain", "--of", server.base, "--settle", "0").returncode == 0
    server.health = 503
    answer = run_script("proxy-ready", server.base)
    assert answer.returncode == 1
    assert answer.stderr.strip() == f"probe: {server.base}/health: HTTP status 503"
