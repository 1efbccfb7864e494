# SPDX-License-Identifier: Apache-2.0
"""``vllm serve`` as a user starts it, and what can be asked of it over HTTP."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend_evaluation.models.tiny.maker import VOCAB_SIZE

BEST = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1", "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
MAX_MODEL_LEN = 16_384
GRANULE = 128
_PATIENCE_S = 300


def longest_hit(num_prompt_tokens: int) -> int:
    """Return what the same prompt hits when it comes again."""
    return (num_prompt_tokens - 1) // GRANULE * GRANULE


def expected_hits(prompts: Sequence[Sequence[int]], before: Sequence[Sequence[int]] = ()) -> int:
    """Return what prompts hit, one after another, in a cache that forgets nothing.

    Args:
        prompts: Token ids.
        before: What was asked earlier.
    """
    seen = [list(prompt) for prompt in before]
    total = 0
    for prompt in map(list, prompts):
        common = max((_num_common(prompt, other) for other in seen), default=0)
        total += min(common // GRANULE * GRANULE, longest_hit(len(prompt)))
        seen.append(prompt)
    return total


def _num_common(one: list[int], other: list[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


@dataclass
class Server:
    """A running ``vllm serve``.

    Attributes:
        process: Of the API server, head of a session of its own.
        url: Where it listens.
        model: Its folder, which is also the model's name.
        log: What it has printed.
        seconds_to_health: From its start to the first answer of ``/health``.
    """

    process: subprocess.Popen[bytes]
    url: str
    model: Path
    log: Path
    seconds_to_health: float = 0.0

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Send a request, greedy and never ended by the model, and return its JSON."""
        response = httpx.post(f"{self.url}{path}", json=self.body(**body), timeout=_PATIENCE_S)
        assert response.status_code == httpx.codes.OK, response.text
        return response.json()

    def complete(self, prompt: Sequence[int], max_tokens: int = 4) -> dict[str, Any]:
        """Have token ids continued."""
        return self.post("/v1/completions", prompt=list(prompt), max_tokens=max_tokens)

    def body(self, **body: Any) -> dict[str, Any]:
        """Return the body of a request."""
        fixed = {"model": str(self.model), "temperature": 0, "ignore_eos": True}
        return {**fixed, "return_token_ids": True, **body}

    def get(self, path: str) -> str:
        """Return what the server answers."""
        return httpx.get(f"{self.url}{path}", timeout=_PATIENCE_S).text

    def metric(self, name: str, *, missing: float | None = None) -> float:
        """Return a Prometheus metric of the server, summed over its labels.

        Args:
            missing: Stands for a metric that several API servers have yet to record.
        """
        text = self.get("/metrics")
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        if not values and missing is not None:
            return missing
        assert values, f"there is no metric {name}"
        return sum(map(float, values))

    def processes(self) -> set[int]:
        """Return the process ids of the server and of all that it started."""
        listing = subprocess.run(
            ["ps", "-o", "pid=", "--sid", str(self.process.pid)], capture_output=True, text=True
        )
        return set(map(int, listing.stdout.split()))


def cached(answer: dict[str, Any]) -> int:
    """Return the hit tokens in the usage of an answer (vLLM leaves zero out)."""
    details = answer["usage"].get("prompt_tokens_details") or {}
    return details.get("cached_tokens") or 0


def tokens(num_tokens: int, seed: int) -> list[int]:
    """Return a prompt of ordinary tokens."""
    rng = random.Random(seed)
    return [rng.randrange(16, VOCAB_SIZE) for _ in range(num_tokens)]


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(model: Path, log: Path, switches: dict[str, str], *arguments: str) -> Server:
    """Start a server, head of a session of its own; whoever asked for it ends it.

    Args:
        arguments: More options of ``vllm serve``; of one given twice the last one holds.
    """
    port = free_port()
    command = [
        *(str(Path(sys.executable).with_name("vllm")), "serve", str(model)),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", str(MAX_MODEL_LEN)),
        *("--block-size", "128", "--enable-prompt-tokens-details"),
        *("--host", "127.0.0.1", "--port", str(port), *arguments),
    ]
    environment = child_environment({"VLLM_CPU_KVCACHE_SPACE": "1", **switches})
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=log.parent,
        )
    return Server(process, f"http://127.0.0.1:{port}", model, log)


def end(server: Server) -> None:
    """Leave no process behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()


@contextlib.contextmanager
def serve(model: Path, log: Path, switches: dict[str, str], *arguments: str) -> Iterator[Server]:
    """Start a server, wait until it is healthy, and leave no process behind."""
    server = start(model, log, switches, *arguments)
    try:
        server.seconds_to_health = wait_until_healthy(server)
        yield server
    finally:
        end(server)


def wait_until_healthy(server: Server) -> float:
    """Return after how many seconds ``/health`` answered.

    A server that ends before, or hangs, fails the test in one line. Its log is printed once: all
    tests that share the server fail with the line alone.
    """
    started, what = time.monotonic(), f"did not answer within {_PATIENCE_S} seconds"
    while time.monotonic() - started < _PATIENCE_S:
        if (code := server.process.poll()) is not None:
            what = f"ended with exit code {code} before it served"
            break
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{server.url}/health").status_code == httpx.codes.OK:
                return time.monotonic() - started
        time.sleep(0.5)
    print(f"the end of {server.log}:\n{server.log.read_text(errors='replace')[-8000:]}")
    said = f"vllm serve {what}; its log is printed with the first test"
    raise pytest.fail.Exception(said, pytrace=False)
