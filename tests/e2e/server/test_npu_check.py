# SPDX-License-Identifier: Apache-2.0
"""``npu-check`` against the real ``vllm serve`` on the CPU: all but what needs an NPU."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.e2e.server.server import BEST, Server, serve
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

# Long enough for the first checks; the others say that they do not fit.
RUN = {"repeat 300", "repeat 4,000", "leave after 384"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    make_tiny_model(folder / "model")
    with serve(folder / "model", folder / "log", BEST, "--max-model-len", "4096") as running:
        yield running


def start(server: Server) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vllm_ascend", "npu-check", "--url", server.url]
    return subprocess.Popen(
        [*command, "--margin", "0", "--vocab-size", "500"],
        env=child_environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_fits_passes_and_the_rest_says_why(server):
    process = start(server)
    output, shown = process.communicate()
    assert process.returncode == 3, shown
    document = json.loads(output)
    checks = {check["name"]: check for check in document["checks"]}
    passed = {name for name, check in checks.items() if check["verdict"] == "passed"}
    assert passed == RUN, shown
    assert document["verdict"] == "skipped" and document["server"]["max_model_len"] == 4096
    assert "no NPU" in checks["device"]["detail"]
    assert "4,096, not 6,032" in checks["32 at once"]["detail"]
    assert checks["repeat 4,000"]["numbers"]["hit_tokens"] == 3968
    assert checks["leave after 384"]["numbers"]["hit_tokens"] == 384
    assert all(name in shown for name in checks)


def test_an_interrupt_loses_nothing(server):
    before = server.metric("vllm:request_success_total")
    process = start(server)
    # The third is of the second check: the first has been noted by then.
    while server.metric("vllm:request_success_total") < before + 3:
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, shown = process.communicate()
    assert process.returncode == 130, shown
    checks = {check["name"]: check["verdict"] for check in json.loads(output)["checks"]}
    assert checks["repeat 300"] == "passed" and "32 at once" not in checks
