# SPDX-License-Identifier: Apache-2.0
"""Beside a tier that holds what memory gives up nothing is lost, so nobody is let in before others.

A tier that is too small loses prompts as memory does.
"""

from __future__ import annotations

import random

import pytest

from tests.e2e.core.configurations import ADMISSION
from tests.e2e.tier.configured import PLAIN, build
from tests.e2e.tier.test_random_traffic import small_units

__all__ = ["small_units"]

TOPICS, ROUNDS, LENGTH = 12, 4, 200


@pytest.mark.parametrize(("gib", "holds_all"), [(0.01, True), (2e-4, False)])
def test_what_a_tier_brings_is_not_lost(gib: float, switch, *, holds_all: bool) -> None:
    switch({**PLAIN.environment, ADMISSION: "cached"})
    engine = build(PLAIN, 1.5, 0, {"backend": "host", "gib": gib}, max_num_seqs=8)
    rng = random.Random(0)
    prompts = [[rng.randrange(1000) for _ in range(LENGTH)] for _ in range(TOPICS)]
    names = [f"{turn}-{topic}" for turn in range(ROUNDS) for topic in range(TOPICS)]
    for name in names:
        engine.add(name, prompts[int(name.partition("-")[2])], 8)
    while engine.step():
        pass
    assert sum(engine.hits.values()) > 0, "nothing was ever hit, so this proves nothing"
    assert bool(engine.manager.coordinator.stats.lost_prompts) != holds_all
    assert (list(engine.hits) == names) == holds_all
    engine.drain()
