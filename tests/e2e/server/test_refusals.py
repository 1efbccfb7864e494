# SPDX-License-Identifier: Apache-2.0
"""The real ``vllm serve`` with values that cannot be used: it ends before an engine is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.server.server import Server, end, start
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

DSV4 = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
# Set -> what the log ends with. By hand, more of them; here, one of each place that finds them.
REFUSALS = {
    "no value": (
        {**DSV4, "VLLM_ASCEND_DSV4_PARTIAL_HITS": "yes"},
        "ValueError: VLLM_ASCEND_DSV4_PARTIAL_HITS='yes' is invalid: allowed are 0 and 1",
    ),
    "contradicts the command line": (
        {**DSV4, "VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE": "64"},
        "ValueError: VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE=64 contradicts --block-size 128: "
        "set one of them, or both alike",
    ),
    "contradicts the model": (
        {**DSV4, "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "1000"},
        "ValueError: VLLM_PREFIX_CACHE_RETENTION_INTERVAL=1000 is invalid: allowed are 'auto', 0 "
        "and multiples of 16384 tokens, the alignment in force",
    ),
}
_PATIENCE_S = 240


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory):
    """All of them side by side: most of their time is importing."""
    folder: Path = tmp_path_factory.mktemp("refusals")
    make_tiny_model(folder / "model")
    started: dict[str, Server] = {
        name: start(folder / "model", folder / f"{number}.log", environment)
        for number, (name, (environment, _)) in enumerate(REFUSALS.items())
    }
    yield started
    for server in started.values():
        end(server)


@pytest.mark.parametrize("name", REFUSALS)
def test_it_ends_with_one_clear_error(servers, name):
    server, (_, error) = servers[name], REFUSALS[name][:2]
    assert server.process.wait(_PATIENCE_S) not in (0, None)
    log = server.log.read_text()
    assert log.rstrip().splitlines()[-1].endswith(error), log[-3000:]
    assert log.count(error) == 1
    assert log.count("Traceback (most recent call last)") == 1
    assert "EngineCore" not in log, "an engine was started"
    assert server.processes() == set()
