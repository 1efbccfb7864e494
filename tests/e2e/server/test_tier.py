# SPDX-License-Identifier: Apache-2.0
"""Two ``vllm serve`` on one real Mooncake Store: what one has computed, the other one hits."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server.server import BEST, Server, cached, serve, tokens
from tests.e2e.tier.real_mooncake import needs_mooncake, running_master
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

pytestmark = needs_mooncake

PROMPT = tokens(14_000, seed=1)
BOUNDARY = 13_952  # the last multiple of 128 in front of its last token

# Two servers on two cores, of which one has been idle for a minute: it may take seconds to answer.
PATIENCE = 120
PATIENT_MASTER = (f"--client_ttl={PATIENCE}", f"--default_kv_lease_ttl={PATIENCE}s")


def with_tier(backend: dict) -> tuple[str, ...]:
    """Return the options of a server with a tier."""
    transfer = {
        "kv_connector": "GranuleTierConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"staging_mib": 16, "load_seconds": PATIENCE, **backend},
    }
    return (
        *("--kv-transfer-config", json.dumps(transfer)),
        "--no-disable-hybrid-kv-cache-manager",
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tier")
    make_tiny_model(made / "model")
    return made


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[tuple[str, ...]]:
    with running_master(folder, flags=PATIENT_MASTER) as settings:
        yield with_tier({"backend": "mooncake", "mooncake": vars(settings)})


@pytest.fixture(scope="module")
def first(folder: Path, store: tuple[str, ...]) -> Iterator[Server]:
    with serve(folder / "model", folder / "first.log", BEST, *store) as running:
        yield running


@pytest.fixture(scope="module")
def computed(first: Server) -> dict:
    answer = first.post("/v1/completions", prompt=PROMPT, max_tokens=4, logprobs=1)
    assert cached(answer) == 0
    _let_it_store(first)
    return answer


def _let_it_store(server: Server) -> None:
    """Ask until nothing is stored any more.

    Where the store is slower than prefill, rows of a short answer find no free buffer. They are
    stored when their prompt comes again.
    """
    before = -1.0
    while before != (stored := server.metric("vllm_ascend:tier_stored_bytes_total")):
        before = stored
        server.complete(PROMPT, max_tokens=16)
        time.sleep(1.0)


def test_an_engine_of_another_block_size_hits_all_but_the_end(folder, store, computed):
    options, switches = (*store, "--block-size", "32"), {**BEST, "VLLM_SERVER_DEV_MODE": "1"}
    with serve(folder / "model", folder / "second.log", switches, *options) as second:
        answer = second.post("/v1/completions", prompt=PROMPT, max_tokens=4, logprobs=1)
        assert cached(answer) == BOUNDARY
        ours, theirs = answer["choices"][0], computed["choices"][0]
        assert ours["token_ids"] == theirs["token_ids"]
        assert ours["logprobs"]["token_logprobs"] == pytest.approx(
            theirs["logprobs"]["token_logprobs"], abs=1e-4
        )
        # Of rows that are loaded nobody could tell log probabilities.
        asks = {"prompt": [*PROMPT[:4000], 1, 2, 3], "max_tokens": 1, "prompt_logprobs": 0}
        told = second.post("/v1/completions", **asks)["choices"][0]["prompt_logprobs"]
        again = second.post("/v1/completions", **asks)
        assert cached(again) == 0 and again["choices"][0]["prompt_logprobs"] == told
        assert len(told) == 4003 and all(told[1:])
        # As who changes the weights does it. Sleep takes the same way, but a CPU has none.
        second.post("/pause")
        second.post("/resume")
        answer = second.post("/v1/completions", prompt=PROMPT, max_tokens=4)
        assert cached(answer) == 0, "rows of the former weights"
