# SPDX-License-Identifier: Apache-2.0
"""EngineCore is killed while a real server drafts for many clients."""

from __future__ import annotations

import asyncio

from tests.e2e.server.faults import check_all_were_told, strike_under_load, until_gone
from tests.e2e.server.processes import ENGINE_CORE, processes_of, shared_memory_of
from tests.e2e.server.server import BEST, serve
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

MTP = '{"method": "mtp", "num_speculative_tokens": 1}'


def test_the_server_says_so_and_ends(tmp_path):
    make_tiny_model(tmp_path / "model")
    options = ("--max-model-len", "4096", "--speculative-config", MTP)
    with serve(tmp_path / "model", tmp_path / "log", BEST, *options) as server:
        shared_memory = shared_memory_of(server)
        victim = processes_of(server)[ENGINE_CORE]
        endings = asyncio.run(strike_under_load(server, victim.kill))
        assert until_gone(server, shared_memory) == 0
    assert shared_memory
    check_all_were_told(endings)
