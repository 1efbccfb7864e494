# SPDX-License-Identifier: Apache-2.0
"""Tiny models, and real servers of them on the CPU, for benchmarks of replays."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

_DSV4, _BEST = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}, {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
# What `make serve` has, on top of what vLLM is; of Gemma, what vLLM is.
ENVIRONMENTS = {"upstream-like": _DSV4, "best": _DSV4 | _BEST}
GEMMA_ENVIRONMENTS: dict[str, dict[str, str]] = {"stock": {}, "best": _BEST}
_BLOCK_SIZE, _GEMMA_BLOCK_SIZE = 128, 32
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, MAX_MODEL_LEN = 32, 2048, 32_768
_START_S, _STOP_S = 900, 60


def environments(options: argparse.Namespace) -> dict[str, dict[str, str]]:
    """Return what is set for each variant."""
    return GEMMA_ENVIRONMENTS if options.gemma else ENVIRONMENTS


def model_of(options: argparse.Namespace) -> Path:
    """Return the folder of what is served."""
    return options.folder / (f"gemma-{options.gemma}" if options.gemma else "tiny-dsv4")


def make_model(options: argparse.Namespace) -> None:
    """Make what is served, if it is not there."""
    if (model_of(options) / "config.json").exists():
        return
    if not options.gemma:
        run_command("tiny-model", model_of(options))
        return
    from vllm_ascend_evaluation.models.tiny.gemma import make_tiny_gemma

    make_tiny_gemma(model_of(options), options.gemma)


def block_size_of(options: argparse.Namespace) -> int:
    """Return the tokens of a block."""
    return _GEMMA_BLOCK_SIZE if options.gemma else _BLOCK_SIZE


def layout_of(options: argparse.Namespace) -> list[str]:
    """Return how a replay is told of the model, if it is another one."""
    return ["--layout", str(model_of(options) / "config.json")] if options.gemma else []


def run_command(*parts: object) -> None:
    """Run one of the project's commands.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    subprocess.run([sys.executable, "-m", "vllm_ascend", *map(str, parts)], check=True)


@contextlib.contextmanager
def served(variant: str, options: argparse.Namespace) -> Iterator[str]:
    """Serve the model; give the address.

    Raises:
        RuntimeError: It ended, or did not begin in time.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_ASCEND_")}
    environment |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment |= environments(options)[variant]
    # Ranks get cores of their own also where all cores are one NUMA node.
    environment |= {"VLLM_CPU_SIM_MULTI_NUMA": "1"} if options.ranks > 1 else {}
    vllm = Path(sys.executable).with_name("vllm")
    call: list[object] = [sys.executable, vllm, "serve", model_of(options), "--dtype", "float32"]
    call += ["--block-size", block_size_of(options), "--enforce-eager"]
    call += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    call += ["--max-model-len", MAX_MODEL_LEN, "--max-num-seqs", MAX_NUM_SEQS]
    call += ["--max-num-batched-tokens", MAX_NUM_BATCHED_TOKENS, "--host", "127.0.0.1"]
    call += ["--port", port, "--data-parallel-size", options.ranks]
    log = options.folder / f"{variant}.log"
    with log.open("w") as to:
        server = subprocess.Popen(
            list(map(str, call)), env=environment, stdout=to, stderr=subprocess.STDOUT
        )
    try:
        _wait_until_ready(server, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()


def _wait_until_ready(server: subprocess.Popen[bytes], health: str, log: Path) -> None:
    ends = time.monotonic() + _START_S
    while time.monotonic() < ends:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended; see {log}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(health, trust_env=False).is_success:
                return
        time.sleep(1)
    raise RuntimeError(f"the server did not begin within {_START_S} s; see {log}")
