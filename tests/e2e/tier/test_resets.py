# SPDX-License-Identifier: Apache-2.0
"""An adapter is loaded with other weights under its old name: what a reset must reach."""

from __future__ import annotations

import logging

from vllm.lora.request import LoRARequest

from tests.e2e.tier.test_faults import host
from tests.e2e.tier.test_random_traffic import small_units
from tests.e2e.tier.tier_engine import TierEngine

__all__ = ["small_units"]

PROMPT = [t % 50 for t in range(100, 390)]


def ask(running: TierEngine, name: str, path: str) -> int:
    running.add(name, PROMPT, 4, lora=LoRARequest("sql", 1, path))
    running.run()
    return running.hits[name]


def test_a_reset_of_both_leaves_nothing_of_the_old_adapter(switch):
    running = host(switch)
    assert ask(running, "old", "/v1") == 0
    assert running.scheduler.reset_prefix_cache(reset_connector=True)
    assert ask(running, "new", "/v2") == 0


def test_a_reset_that_leaves_the_tier_says_so(switch, caplog, monkeypatch):
    running = host(switch)
    ask(running, "old", "/v1")
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.INFO, "vllm"):
        assert running.scheduler.reset_prefix_cache()
    assert "reset_external=true" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "vllm"):
        assert running.scheduler.reset_prefix_cache(reset_connector=True)
    assert "leaves the tier" not in caplog.text
