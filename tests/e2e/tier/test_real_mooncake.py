# SPDX-License-Identifier: Apache-2.0
"""Engines of the oracle on a real Mooncake Store, whose master is killed and comes back."""

from __future__ import annotations

import time
from pathlib import Path

from tests.e2e.server.server import free_port
from tests.e2e.tier.real_mooncake import needs_mooncake, running_master
from tests.e2e.tier.test_faults import BOUNDARY, CELL, PROMPT, answer
from tests.e2e.tier.test_random_traffic import small_units
from tests.e2e.tier.tier_engine import TierEngine, transfer_config
from vllm_ascend.tier import scheduler_side
from vllm_ascend.tier.mooncake_settings import MooncakeSettings

__all__ = ["small_units"]

pytestmark = needs_mooncake


def engine(settings: MooncakeSettings, seed: int) -> TierEngine:
    transfer = transfer_config(backend="mooncake", pool="p", mooncake=dict(vars(settings)))
    return TierEngine(CELL.layout, CELL.options(4.0), transfer, CELL.oracle(seed))


def test_a_master_that_is_killed_costs_hits_and_one_that_comes_back_brings_them_again(
    tmp_path: Path, switch, monkeypatch
):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(scheduler_side, "_PAUSE_S", 0.5)
    switch(CELL.environment)
    port, metadata = free_port(), free_port()
    with running_master(tmp_path, port, metadata) as settings:
        first, second = engine(settings, 1), engine(settings, 2)
        assert answer(first, "a") == 0
        answer(first, "end", [1, 2, 3])
        assert first.tier.is_idle()
        assert answer(second, "b") == BOUNDARY, "over the real store"
    started = time.monotonic()
    assert answer(second, "c", [7, *PROMPT]) == 0
    assert time.monotonic() - started < 300
    assert second.tier.counts.pauses == 1, "a dead store is left alone"
    with running_master(tmp_path, port, metadata):
        assert any(_is_shared(first, second, attempt) for attempt in range(20))
        # A client that outlives its master waits for it when it is collected, for 10 s and with
        # Python's lock: whatever other test runs in this process stands still.
        first.close()
        second.close()


def test_after_a_reset_nothing_of_before_is_hit_although_it_was_just_read(
    tmp_path: Path, switch, monkeypatch
):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    switch(CELL.environment)
    with running_master(tmp_path) as settings:
        first, second = engine(settings, 1), engine(settings, 2)
        answer(first, "a")
        answer(first, "end", [1, 2, 3])
        # The store keeps what was asked for lately, unless it is told otherwise.
        assert answer(second, "b") == BOUNDARY
        assert second.scheduler.reset_prefix_cache(reset_connector=True)
        assert answer(second, "c") == 0
        first.close()
        second.close()


def _is_shared(first: TierEngine, second: TierEngine, attempt: int) -> bool:
    """Whether one engine hits what the other one has computed just now."""
    time.sleep(1.0)  # Mooncake's clients look for their master every second
    prompt = [50 + attempt, *PROMPT]
    answer(first, f"d{attempt}", prompt)
    answer(first, f"e{attempt}", [1, 2, 3, attempt])
    return answer(second, f"f{attempt}", prompt) == BOUNDARY
