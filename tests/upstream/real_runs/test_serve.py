# SPDX-License-Identifier: Apache-2.0
"""``vllm serve`` of the real, overlaid vllm-ascend, and the commands that operators run against it.

Two servers after another on the same port, as somebody types them; tests in their order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.server.faults import until_gone
from tests.e2e.server.server import (
    Server,
    cached,
    end,
    free_port,
    longest_hit,
    tokens,
    wait_until_healthy,
)
from tests.upstream.npu_reference.host import BEST, PLUGINS, Host, make_host
from tests.upstream.npu_reference.releases import differences_here
from tests.upstream.npu_reference.serve import command
from tests.upstream.sources import REPOSITORY

LENGTHS = (127, 129, 700, 5000)
QUESTIONS = REPOSITORY / "tests" / "e2e" / "regress" / "questions.csv"
LOAD = (
    *("--tool", "vllm", "--input-tokens", "1000", "--output-tokens", "8", "--requests", "8"),
    *("--warmup", "0", "--repeats", "1", "--concurrency", "4"),
    *("--gpqa-file", str(QUESTIONS), "--gpqa-max-tokens", "20"),
)
_PATIENCE_S = 900
# A plugin of vLLM that lets every prefill begin a block too late.
_FAULT = """\
def plant():
    from vllm_ascend.attention.dsa_v1 import AscendDSAMetadataBuilder as Builder

    original = Builder.{name}

    def build(*args, **kwargs):
        metadata = original(*args, **kwargs)
        metadata.start_pos = metadata.start_pos + 128
        return metadata

    Builder.{name} = build
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return make_host(tmp_path_factory.mktemp("host") / "host")


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


def start(host: Host, port: int, log: Path, environment: dict[str, str], *options: str) -> Server:
    """Start a server that knows its model by its folder as well, and wait for it."""
    names = ("--served-model-name", str(host.model), host.model.name)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(host, port, *names, *options),
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=log.parent,
        )
    server = Server(process, f"http://127.0.0.1:{port}", host.model, log)
    try:
        wait_until_healthy(server)
    except BaseException:
        end(server)
        raise
    return server


def interrupt(server: Server) -> int:
    """Press Ctrl+C, and return the exit code when no process is left."""
    os.killpg(server.process.pid, signal.SIGINT)
    return until_gone(server, set())


def said_while_serving(log: Path) -> str:
    """Return the log up to Ctrl+C, where vLLM 0.23.0's front end takes the engine's end for an
    error."""
    return log.read_text().partition("[shutdown]")[0]


def answers(server: Server) -> list[list[int]]:
    """Return what the server says to the prompts, one after another."""
    said = [server.complete(tokens(length, seed=length)) for length in LENGTHS]
    return [answer["choices"][0]["token_ids"] for answer in said]


@pytest.fixture(scope="module")
def without_cache(host: Host, port: int, tmp_path_factory: pytest.TempPathFactory):
    """What a server answers that caches nothing; it is gone by then."""
    log = tmp_path_factory.mktemp("log") / "without"
    server = start(host, port, log, host.environment({}), "--no-enable-prefix-caching")
    try:
        said = answers(server)
        assert server.metric("vllm:prefix_cache_hits_total") == 0
        assert interrupt(server) == 0
    finally:
        end(server)
    assert "Traceback" not in said_while_serving(log)
    return said


@pytest.fixture(scope="module")
def server(
    host: Host, port: int, without_cache: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("log") / "best"
    running = start(host, port, log, host.environment(BEST))
    yield running
    end(running)


def run(host: Host, *arguments: str, exit_code: int = 0) -> str:
    """Run one of the project's commands on the host, and return what it said.

    In the repository's folder, as the documentation has it: the host's package is to be found, not
    the one that lies there.
    """
    result = subprocess.run(
        [sys.executable, "-m", "vllm_ascend", *arguments],
        env=host.environment(BEST) | {"COLUMNS": "300", "VLLM_LOGGING_STREAM": "ext://sys.stderr"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert result.returncode == exit_code, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout + result.stderr


def test_it_says_where_it_listens_and_what_is_in_force(server, host):
    log = server.log.read_text()
    assert f"Starting vLLM server on {server.url}" in log
    assert "hits are multiples of 128" in log
    assert "Platform plugin ascend is activated" in log


def test_hits_change_no_token(server, without_cache):
    assert answers(server) == without_cache
    assert answers(server) == without_cache
    prompts = [tokens(length, seed=length) for length in LENGTHS]
    hits = [cached(server.complete(prompt)) for prompt in prompts]
    assert hits == [longest_hit(len(prompt)) for prompt in prompts]


def test_the_replay_over_http(server, host):
    """Of 1,000 tokens 900 are shared: 7 granules of 128, in 11 prompts of 12."""
    arguments = ("--workload", "12:1000:900:4", "--concurrency", "1")
    said = run(host, "replay", "--url", server.url, *arguments)
    assert "12 of 12 requests answered" in said
    assert f"{100 * 11 * 896 / 12_000:.1f} %" in said


def test_regress(server, host, tmp_path):
    """Measured, and judged against itself."""
    arguments = ("regress", "--url", server.url, "--out", str(tmp_path / "out"), *LOAD)
    baseline = str(tmp_path / "baseline.json")
    said = run(host, *arguments, "--save-baseline", baseline)
    assert "measured; there is no baseline to compare with" in said
    report = json.loads((tmp_path / "out" / "regress.json").read_text())
    (load,) = report["performance"]["loads"]
    # The first prompt is sent twice; the others share 900 tokens, more or less.
    assert 7 * 768 + 896 <= load["cache"]["hit_tokens"] <= 7 * 896 + 1024
    said = run(host, *arguments, "--rejudge", "--baseline", baseline)
    assert "no regression in 7 metrics" in said


def test_npu_check_finds_no_npu(host):
    """Whatever torch_npu says here: vLLM serves on the CPU."""
    said = run(host, "npu-check", exit_code=2)
    assert "finds no NPU here, and --url names no server" in said


def test_doctor(server, host):
    arguments = ("--model", str(host.model), "--block-size", "128")
    said = run(host, "doctor", *arguments)
    assert "this project lies over the checkout, whole" in said
    assert "serving would be right (0 wrong" in said
    # Nothing stands in front of what another program is to read, where vLLM logs elsewhere: from
    # 0.23.0 on, importing vllm-ascend imports vLLM, before a command can settle that.
    assert run(host, "doctor", "--json", *arguments).startswith("{")


def test_ctrl_c_ends_it(server):
    assert interrupt(server) == 0
    assert "Traceback" not in said_while_serving(server.log)
    assert "TagError" not in server.log.read_text()


def test_a_wrong_row_ends_the_server(host, port, tmp_path):
    """Nobody gets an answer, and the log names request, layer and positions."""
    fault = _FAULT.format(name=differences_here().builds_prefills)
    (host.site / "planted.py").write_text(fault)
    described = host.site / "planted-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1\n")
    points = "[vllm.general_plugins]\nplanted = planted:plant\n"
    (described / "entry_points.txt").write_text(points)
    plugins = {"VLLM_PLUGINS": ",".join([*PLUGINS, "planted"])}
    server = start(host, port, tmp_path / "log", host.environment(BEST | plugins))
    try:
        body = server.body(prompt=tokens(300, seed=1), max_tokens=4)
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=_PATIENCE_S)
        assert answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR, answer.text
        until_gone(server, set())
    finally:
        end(server)
    assert "TagError: request cmpl-" in server.log.read_text()
