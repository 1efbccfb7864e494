# SPDX-License-Identifier: Apache-2.0
"""The shipped ``launch.sh`` starts a leader and a headless worker, and both serve requests.

Both "nodes" are this machine, with one data-parallel rank each. Costs 150 seconds of a CPU.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from tests.e2e.server.server import (
    BEST,
    Server,
    cached,
    end,
    free_port,
    longest_hit,
    tokens,
    wait_until_healthy,
)
from tests.ut.deploy.pods import in_group, make_pod
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

MODEL_NAME = "deepseek-v4-flash"
# Of the shipped serve.yaml: what wants an NPU, the real weights or their tokenizer.
NOT_HERE = {
    *("quantization", "enable-expert-parallel", "gpu-memory-utilization", "speculative-config"),
    *("safetensors-load-strategy", "model-loader-extra-config", "tokenizer-mode"),
    *("tool-call-parser", "enable-auto-tool-choice", "reasoning-parser"),
}
COORDINATOR_STARTED = "Started DP Coordinator process"
COORDINATOR_TOO_SLOW = "DP Coordinator process failed to report ZMQ addresses during startup"
_PATIENCE_S = 300


class Group:
    """The pods of a LeaderWorkerSet, each a server of its own process group.

    Attributes:
        folder: Of the pods.
        url: Of the leader's API server.
    """

    def __init__(self, folder: Path) -> None:
        """Make the model; start nothing."""
        make_tiny_model(folder / "model")
        self.folder = folder
        port, rpc_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._settings = {
            "model": str(folder / "model"),
            "host": "127.0.0.1",
            "port": port,
            "max-model-len": 4096,
            "dtype": "float32",
            "enforce-eager": True,
        }
        self._flags = ("--data-parallel-size=2", f"--data-parallel-rpc-port={rpc_port}")

    def start(self, index: int) -> Server:
        """Start the pod with this index; whoever asked for it ends it."""
        pod = make_pod(
            Path(tempfile.mkdtemp(prefix=f"pod-{index}-", dir=self.folder)),
            vllm=f'#!/bin/sh\nexec "{Path(sys.executable).with_name("vllm")}" "$@"\n',
        )
        in_group(pod, index, local_ranks=1)
        config = pod.folder / "etc" / "serve.yaml"
        shipped = yaml.safe_load(config.read_text())
        kept = {name: value for name, value in shipped.items() if name not in NOT_HERE}
        config.write_text(yaml.safe_dump({**kept, **self._settings}))
        log = pod.folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*pod.command, *self._flags],
                env=child_environment({**pod.environ, **BEST, "VLLM_CPU_KVCACHE_SPACE": "1"}),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=pod.folder,
            )
        return Server(process, self.url, self.folder / "model", log)


def has_coordinator(leader: Server) -> bool:
    """Wait for a leader's coordinator; ``False`` if the machine was too busy for it.

    vLLM allows it 30 s to import itself, and then ends.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while COORDINATOR_STARTED not in (log := leader.log.read_text()):
        if leader.process.poll() is not None:
            assert COORDINATOR_TOO_SLOW in log, log[-4000:]
            return False
        assert time.monotonic() < deadline, log[-4000:]
        time.sleep(0.5)
    return True


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """The leader and the worker, serving."""
    group = Group(tmp_path_factory.mktemp("group"))
    with ExitStack() as stack:
        for _ in range(3):  # Kubernetes would restart it, too
            leader = group.start(0)
            stack.callback(end, leader)
            if has_coordinator(leader):
                break
        worker = group.start(1)
        stack.callback(end, worker)
        seconds = wait_until_healthy(leader)
        print(f"the worker joined, and the leader was healthy, {seconds:.0f} s later")
        yield leader, worker


@pytest.mark.parametrize("rank", [0, 1], ids=["rank of the leader", "rank of the worker"])
def test_a_request_is_served_and_hit_by_either_node(pods: tuple[Server, Server], rank: int):
    leader, worker = pods
    assert worker.process.poll() is None
    prompt = tokens(1000, seed=rank)
    answers = [
        httpx.post(
            f"{leader.url}/v1/completions",
            json=leader.body(model=MODEL_NAME, prompt=prompt, max_tokens=4),
            headers={"X-data-parallel-rank": str(rank)},
            timeout=_PATIENCE_S,
        )
        .raise_for_status()
        .json()
        for _ in range(2)
    ]
    assert [cached(answer) for answer in answers] == [0, longest_hit(len(prompt))]
    first, second = (answer["choices"][0]["token_ids"] for answer in answers)
    assert first == second
    by_engine = f'vllm:prompt_tokens_by_source_total{{engine="{rank}",'
    lines = [line for line in leader.get("/metrics").splitlines() if line.startswith(by_engine)]
    hits = [float(line.rsplit(" ", 1)[1]) for line in lines if 'source="local_cache_hit"' in line]
    assert hits == [longest_hit(len(prompt))]


def test_only_the_leader_has_an_api_server(pods: tuple[Server, Server]):
    leader, worker = (pod.log.read_text() for pod in pods)
    assert "Application startup complete" in leader
    assert "--headless" in worker
    assert "Launching 1 data parallel engine(s) in headless mode" in worker
    assert "Application startup complete" not in worker
