# SPDX-License-Identifier: Apache-2.0
"""The command of vllm-ascend's guide for DeepSeek-V4-Flash-0731, cut to the size of a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.server.server import GRANULE, Server, cached, end, free_port, longest_hit
from tests.upstream.npu_reference.dspark_checkpoint import BLOCK
from tests.upstream.npu_reference.host import BEST, Host, make_host
from tests.upstream.npu_reference.processes import LENGTHS, beginning
from tests.upstream.npu_reference.releases import differences_here
from tests.upstream.npu_reference.serve import GUIDE
from tests.upstream.real_runs.test_serve import interrupt, said_while_serving, start

pytestmark = pytest.mark.skipif(
    not differences_here().has_dspark, reason="this release of vllm-ascend has no DSpark"
)
# To these some drafts are right.
PROMPTS = [beginning(length) for length in LENGTHS]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return make_host(tmp_path_factory.mktemp("host") / "host", dspark=True)


def ask(server: Server) -> list[tuple[list[int], int]]:
    """Return (answer, hit tokens) of every prompt, asked one after another."""
    said = [server.complete(prompt, max_tokens=12) for prompt in PROMPTS]
    return [(answer["choices"][0]["token_ids"], cached(answer)) for answer in said]


def accepted(server: Server) -> tuple[float, float]:
    """Return how many draft tokens were made and accepted so far."""
    names = ("num_draft_tokens", "num_accepted_tokens")
    made, right = (server.metric(f"vllm:spec_decode_{name}_total") for name in names)
    return made, right


def test_hits_change_neither_answers_nor_acceptance(host: Host, tmp_path: Path):
    port = free_port()
    log = tmp_path / "without"
    server = start(host, port, log, host.environment({}), *GUIDE, "--no-enable-prefix-caching")
    try:
        without = [answer for answer, _ in ask(server)]
        drafts_without = accepted(server)
        assert interrupt(server) == 0
    finally:
        end(server)
    assert drafts_without[1] > 0
    log = tmp_path / "best"
    server = start(host, port, log, host.environment(BEST), *GUIDE)
    try:
        ask(server)
        before = accepted(server)
        again = ask(server)
        after = accepted(server)
        assert interrupt(server) == 0
    finally:
        end(server)
    assert "Traceback" not in said_while_serving(log)
    assert "TagError" not in log.read_text()
    assert [answer for answer, _ in again] == without
    assert [hits for _, hits in again] == [longest_hit(len(prompt)) for prompt in PROMPTS]
    assert after[1] - before[1] == drafts_without[1]
    # A step with a prompt's last token alone is counted as one with drafts: vLLM pads it with some,
    # so that it has the shape of all others.
    padded = sum((len(prompt) - 1) % GRANULE == 0 for prompt in PROMPTS)
    assert after[0] - before[0] == drafts_without[0] + padded * BLOCK
