# SPDX-License-Identifier: Apache-2.0
"""Layouts whose granule is no longer than the window of the state: of the blocks in that window a
load fills those of the tail alone, and nobody hits the others."""

from __future__ import annotations

import pytest

from tests.e2e.core.configurations import DSV4, PROFILE
from tests.e2e.core.conftest import skip_if_left_to_vllm
from tests.e2e.tier.test_random_traffic import small_units
from tests.e2e.tier.tier_engine import TierEngine, transfer_config
from tests.soak.recipes import Layer, LayoutRecipe
from vllm_ascend.dry_run.scheduler import SchedulerOptions

__all__ = ["small_units"]

UNIT = 4
LAYERS = (Layer("window", 4, 6), Layer("compressed", 2, ratio=4, state_block_size=4))
PARTIAL, SPARSE = "VLLM_ASCEND_DSV4_PARTIAL_HITS", "VLLM_ASCEND_DSV4_SPARSE_STATE"
SWITCHES = {
    "best": {PROFILE: "best"},
    "sparse": {PARTIAL: "1", SPARSE: "1"},
    "whole state": {PARTIAL: "1", SPARSE: "0"},
    "best, whole state": {PROFILE: "best", SPARSE: "0"},
}


PROMPT = list(range(100, 111))


@pytest.mark.parametrize("switches", SWITCHES)
def test_nobody_hits_a_block_that_nobody_has_loaded(switches, switch):
    switch({DSV4: "1", **SWITCHES[switches]})
    layout = LayoutRecipe("dsv4-rows", 2, LAYERS).build()
    brought = 0
    for cut in range(UNIT + 1, len(PROMPT) + 1):
        options = SchedulerOptions(num_blocks=138, max_num_batched_tokens=160, max_model_len=256)
        transfer = transfer_config(backend="host", gib=0.0003, async_above_mib=64 * (cut % 2))
        engine = TierEngine(layout, options, transfer)
        skip_if_left_to_vllm(engine)
        engine.add("stores", PROMPT, 1)
        engine.run()
        engine.reset()
        engine.worker.lose_memory()  # what a block still holds may be right by chance
        engine.add("loads", PROMPT[:cut], 1)
        engine.run()
        for share in (9, 10, 4):
            engine.add(f"shares {share}", [*PROMPT[:share], *range(6)], 1)
            engine.run()
        brought += engine.tier.counts.hit_tokens
        engine.drain()
        engine.close()
    assert brought, "nothing was loaded, so it proves nothing"
