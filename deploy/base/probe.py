# SPDX-License-Identifier: Apache-2.0
"""What Kubernetes asks a pod: is it started, ready, alive, and is it done?

Runs in the serving image with nothing but the standard library. Exit code 0 means yes; 1 means no,
with the reason on standard error, which ``kubectl describe pod`` shows.

In a LeaderWorkerSet only the leader has an HTTP server. The other pods answer for their own engine
processes, and ask the leader, whose ``/health`` is up only after every engine has joined it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

PORT = 8000
# vLLM names its processes so (VLLM_PROCESS_NAME_PREFIX is left at its default).
ENGINE_TITLE = b"VLLM::EngineCore"
UNFINISHED = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
# Pods ask each other directly, whatever http_proxy says.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NotYetError(Exception):
    """The answer is no, for the reason given."""


def fetch(url: str, *, body: dict | None = None, timeout: float = 5.0) -> str:
    """Return what ``url`` answers, to a POST where there is a ``body``.

    Raises:
        NotYetError: No answer within ``timeout`` seconds, or a status of 400 and above.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with _DIRECT.open(request, timeout=timeout) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        raise NotYetError(f"{url}: HTTP status {error.code}") from None
    except (OSError, ValueError) as error:
        raise NotYetError(f"{url}: {error}") from None


def healthy(bases: list[str]) -> None:
    """Check that ``/health`` answers 200 on every one of the servers ``bases``."""
    for base in bases:
        fetch(f"{base}/health")


def generates(base: str, *, model_from: str, timeout: float) -> None:
    """Check that ``base`` answers a completion: scheduler, workers and NPUs, not only HTTP.

    Two tokens are asked for: the prefill's and a decoded one. ``model_from`` is the server that
    knows the model's name (a proxy does not).
    """
    model = json.loads(fetch(f"{model_from}/v1/models"))["data"][0]["id"]
    body = {"model": model, "prompt": "1 + 1 =", "max_tokens": 2, "temperature": 0}
    answer = json.loads(fetch(f"{base}/v1/completions", body=body, timeout=timeout))
    if not answer.get("choices"):
        raise NotYetError(f"{base}/v1/completions answered without choices: {answer}")


def engines_alive(expected: int, proc: Path = Path("/proc")) -> None:
    """Check that ``expected`` engine processes of this pod live."""
    titles = [_title(entry) for entry in proc.glob("[0-9]*/cmdline")]
    found = sum(title.startswith(ENGINE_TITLE) for title in titles)
    if found < expected:
        raise NotYetError(f"{found} of {expected} engine processes live")


def _title(command_line: Path) -> bytes:
    try:
        return command_line.read_bytes()
    except OSError:  # the process ended while we looked
        return b""


def unfinished_requests(base: str) -> int:
    """Return how many requests run or wait, over all engines of ``base``; 0 if it is gone."""
    try:
        metrics = fetch(f"{base}/metrics")
    except NotYetError:
        return 0
    counts = [line for line in metrics.splitlines() if line.startswith(UNFINISHED)]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in counts))


def drain(base: str, *, settle: float, seconds: float, interval: float = 2.0) -> None:
    """Return once ``base`` has no request left, or after ``seconds`` in any case.

    Args:
        base: The server that takes the requests.
        settle: Seconds to wait first, for routers to notice that the pod is going.
        seconds: The most to wait in all; below the pod's grace period.
        interval: Seconds between two looks.
    """
    end = time.monotonic() + seconds
    time.sleep(min(settle, seconds))
    while (left := unfinished_requests(base)) and time.monotonic() < end:
        print(f"drain: {left} requests left", file=sys.stderr)
        time.sleep(interval)


def resolve(host: str, *, seconds: float, interval: float = 2.0) -> str:
    """Return the address of ``host``, waiting up to ``seconds`` for DNS to know it."""
    end = time.monotonic() + seconds
    while True:
        try:
            return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            if time.monotonic() >= end:
                raise NotYetError(f"{host}: {error}") from None
        time.sleep(interval)


def serving_base() -> str:
    """Return the URL of the server that answers for this pod: its own or its leader's."""
    leader = os.environ["LWS_LEADER_ADDRESS"] if is_worker() else "127.0.0.1"
    return f"http://{leader}:{PORT}"


def is_worker() -> bool:
    """Whether this pod runs engines for another pod's server."""
    return os.environ.get("LWS_WORKER_INDEX", "0") != "0"


def check_alive() -> None:
    """Alive: a worker's engines live, whatever its leader does; else ``/health``."""
    if is_worker():
        engines_alive(int(os.environ["DATA_PARALLEL_SIZE_LOCAL"]))
    else:
        healthy([serving_base()])


def run(arguments: argparse.Namespace) -> None:
    """Carry out one command; see :func:`main`."""
    proxy = f"http://127.0.0.1:{PORT}"
    match arguments.command:
        case "started":
            healthy([serving_base()])
            generates(serving_base(), model_from=serving_base(), timeout=arguments.timeout)
        case "ready":
            healthy([serving_base()])
        case "alive":
            check_alive()
        case "drain":
            base = arguments.of or serving_base()
            drain(base, settle=arguments.settle, seconds=arguments.seconds)
        case "resolve":
            print(resolve(arguments.host, seconds=arguments.seconds))
        case "proxy-started":
            healthy(arguments.behind)
            generates(proxy, model_from=arguments.behind[0], timeout=arguments.timeout)
        case "proxy-ready":
            healthy(arguments.behind)
            fetch(f"{proxy}/healthcheck")


def parser() -> argparse.ArgumentParser:
    """Return the parser of ``probe.py COMMAND``."""
    root = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = root.add_subparsers(dest="command", required=True)
    commands.add_parser("ready")
    commands.add_parser("alive")
    started = commands.add_parser("started")
    stop = commands.add_parser("drain")
    stop.add_argument("--of", help="the server whose requests count, as a URL")
    stop.add_argument("--settle", type=float, default=10.0)
    stop.add_argument("--seconds", type=float, default=600.0)
    find = commands.add_parser("resolve")
    find.add_argument("host")
    find.add_argument("--seconds", type=float, default=300.0)
    proxy_started = commands.add_parser("proxy-started")
    for proxy in (proxy_started, commands.add_parser("proxy-ready")):
        proxy.add_argument("behind", nargs="+", help="servers behind the proxy, as URLs")
    for slow in (started, proxy_started):
        slow.add_argument("--timeout", type=float, default=110.0)
    return root


def main() -> None:
    """Run one command and exit 0 (yes) or 1 (no, and why)."""
    try:
        run(parser().parse_args())
    except NotYetError as error:
        sys.exit(f"probe: {error}")


if __name__ == "__main__":
    main()
