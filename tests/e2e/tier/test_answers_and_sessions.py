# SPDX-License-Identifier: Apache-2.0
"""What an answer leaves in the tier: all that the next turn hits, nothing that drafts spoil."""

from __future__ import annotations

import random

import pytest
from vllm.v1.request import RequestStatus

from tests.e2e.core.engine import Engine
from tests.e2e.tier.test_faults import answer
from tests.e2e.tier.test_random_traffic import cell, small_units
from tests.e2e.tier.tier_engine import TierEngine, transfer_config

__all__ = ["small_units"]

UNIT = 16


def with_tier(configuration, seed: int = 1) -> TierEngine:
    transfer = transfer_config(backend="host", gib=0.01)
    return TierEngine(
        configuration.layout, configuration.options(4.0), transfer, configuration.oracle(seed)
    )


@pytest.mark.parametrize("mode", ["plain", "mtp1", "mtp3", "async", "async-mtp"])
def test_the_next_turn_hits_the_answer_as_in_the_kv_cache(mode, switch):
    """With drafts a tail has no name before the unit behind it is known: windows have moved on."""
    configuration = cell("dsv4-rows", mode, "best")
    switch(configuration.environment)
    local = Engine(configuration.layout, configuration.options(4.0), configuration.oracle(1))
    tiered, hits = with_tier(configuration), []
    for running in (local, tiered):
        prompt = [t % 50 for t in range(100, 100 + 5 * UNIT + 3)]
        running.add("turn", prompt, 5 * UNIT + 5)
        running.run()
        if running is tiered:
            answer(tiered, "end", [1, 2, 3])
            assert tiered.scheduler.kv_cache_manager.reset_prefix_cache()
            tiered.worker.lose_memory()
        running.add("next", [*prompt, *running.outputs["turn"], *[7] * 20], 4)
        running.run()
        hits.append(running.hits["next"])
    assert hits[1] == hits[0] > 5 * UNIT + 3
    assert tiered.tier.counts.hit_tokens == hits[1]


@pytest.mark.parametrize(
    "configuration",
    [
        cell("dsv4-rows", "mtp3", "best"),
        cell("dsv4-rows", "mtp1", "partial-sparse-0"),
        cell("dsv4-stock", "mtp1", "partial-0"),
    ],
    ids=str,
)
def test_nobody_loads_draft_rows_that_a_dropped_token_was_read_for(configuration, switch):
    """Each turn of a streaming session drops what was sampled last. Its drafts have read it."""
    switch(configuration.environment)
    loads = 0
    for seed in range(8):
        rng, running = random.Random(seed), with_tier(configuration, seed)
        for _ in range(rng.randrange(2, 6)):
            said = [rng.randrange(50) for _ in range(rng.randrange(5, 45))]
            running.say("session", said, rng.randrange(1, 8))
            _let_it_wait(running)
        tokens = list(running.scheduler.requests["session"].all_token_ids)
        running.say("session", [])
        running.run()
        answer(running, "end", [1, 2, 3])
        running.worker.lose_memory()
        for cut in range(len(tokens), 20, -7):  # each load is proved by the oracle
            assert running.scheduler.kv_cache_manager.reset_prefix_cache()
            answer(running, f"up to {cut}", [*tokens[:cut], 49])
        loads += running.tier.counts.loads
    assert loads, "nothing was loaded, so it proves nothing"


def _let_it_wait(running: TierEngine) -> None:
    while running.step():
        session = running.scheduler.requests.get("session")
        if session is None or session.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            return
