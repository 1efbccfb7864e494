# SPDX-License-Identifier: Apache-2.0
"""The front end's index finds, step by step, what each rank's tier would bring."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import pytest
from vllm.lora.request import LoRARequest

from tests.e2e.core.event_follower import Follower
from tests.e2e.core.test_cache_news import NewsIndex
from tests.e2e.core.workload import Workload
from tests.e2e.tier.configured import DRAFTS, HOST, MOONCAKE, PLAIN, build
from tests.e2e.tier.test_disk import settle
from tests.e2e.tier.test_random_traffic import cell, small_units
from tests.e2e.tier.test_shared_pool import pool
from tests.e2e.tier.tier_engine import TierEngine
from vllm_ascend.dp_routing.names import prompt_names
from vllm_ascend.dry_run.scheduler import make_request
from vllm_ascend.tier.disk import level

__all__ = ["pool", "small_units"]

_RANK = 2


class TierFollower(Follower):
    """Compares, at the start of every step, what a prompt would get from the tier.

    Attributes:
        num_longer: Probes to which the tier brought something.
    """

    def __init__(self, engine: TierEngine, seed: int) -> None:
        self.num_longer = 0
        super().__init__(engine, seed, 3, index=NewsIndex(engine))

    def _publish(self) -> list:
        self.index.follow()
        return self._take_events()

    def compare(self, tokens: list[int], salt: str | None = None, adapter: int = 0) -> None:
        lora = LoRARequest(f"adapter-{adapter}", adapter, "/nowhere") if adapter else None
        engine, index = self.engine, self.index.index
        probe = make_request(engine.scheduler, "probe", tokens, 1, cache_salt=salt, lora=lora)
        names = prompt_names(probe, index.hash_tokens or 1)
        hits = [cached.hit for cached in index.look_up(names, len(tokens))]
        found = index.with_tier(names, len(tokens), hits)[_RANK]
        brought, _ = engine.tier.look_up(probe, hits[_RANK])
        engine.tier.ended(probe)
        assert found == hits[_RANK] + brought, f"{len(tokens)} tokens, {salt}, {adapter}"
        self.num_longer += brought > 0


@pytest.mark.parametrize(
    ("configuration", "tier"),
    [
        (PLAIN, HOST),
        (PLAIN, {**HOST, "gib": 0.001}),  # evicts
        (DRAFTS, HOST),
        (cell("gemma", "plain", "best"), HOST),
        (PLAIN, MOONCAKE),
    ],
    ids=["host", "small", "drafts", "gemma", "mooncake"],
)
def test_the_front_end_knows_what_the_tier_brings(configuration, tier, pool, switch):
    switch({**configuration.environment, "VLLM_ASCEND_DP_ROUTING": "cache"})
    seed = crc32(f"{configuration} {tier}".encode())
    engine = build(configuration, 1.2, seed, tier, is_data_parallel=True)
    follower = TierFollower(engine, seed)
    Workload(engine, replace(configuration.traffic, busy_reset=0.0), seed).run(150)
    assert follower.num_longer, "the probes prove nothing"
    index, log = follower.index.index, engine.manager.block_pool.event_log
    assert index.rules.tier.is_shared is (tier is MOONCAKE) and not index.rules.tier.shares_disk
    engine.step()
    follower.index.follow()
    index.apply(_RANK, log.all_news())
    for _ in range(100):
        follower.compare(*follower._probe())


def test_a_reset_of_the_tier_is_told_and_one_of_the_cache_alone_leaves_it(switch):
    switch({**PLAIN.environment, "VLLM_ASCEND_DP_ROUTING": "cache"})
    engine = build(PLAIN, 4.0, 1, HOST, is_data_parallel=True)
    follower = TierFollower(engine, 1)
    prompt = list(range(200))
    for name in ("a", "b"):
        engine.add(name, prompt, 1)
        engine.run()
    assert engine.scheduler.reset_prefix_cache()
    follower.index.follow()
    follower.compare(prompt)
    assert follower.num_longer
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    follower.index.follow()
    follower.compare(prompt)
    assert not follower.index.index.num_names


def test_what_a_rank_has_written_another_one_brings_from_the_disk(switch, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(level, "SETTLE_S", 0.0)
    switch({**PLAIN.environment, "VLLM_ASCEND_DP_ROUTING": "cache"})
    tier = {**HOST, "pool": "p", "disk": {"path": str(tmp_path), "gib": 1}}
    first, second = (build(PLAIN, 4.0, 1, tier, is_data_parallel=True) for _ in range(2))
    follower, prompt = TierFollower(first, 1), list(range(200))
    for name in ("a", "b"):
        first.add(name, prompt, 1)
        first.run()
    settle(first)
    second.index.disk.work.look()
    follower.index.follow()
    probe = make_request(second.scheduler, "probe", prompt, 1)
    index = follower.index.index
    names = prompt_names(probe, index.hash_tokens)
    own = index.with_tier(names, len(prompt), [0] * (_RANK + 1))
    *others, told = index.with_disk(names, len(prompt), own)
    assert own[:_RANK] == [0] * _RANK and others == [told] * _RANK
    brought, is_async = second.tier.look_up(probe, 0)
    assert brought == told > 0 and is_async
    for engine in (first, second):
        engine.index.disk.work.closes.set()
