# SPDX-License-Identifier: Apache-2.0
"""A tier with nothing else set, and beside other connectors: exact, and always an answer."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

from tests.e2e.core.configurations import Configuration
from tests.e2e.tier.test_faults import answer
from tests.e2e.tier.test_random_traffic import cell, small_units
from tests.e2e.tier.tier_engine import TierEngine, transfer_config
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.tier import host_memory

__all__ = ["small_units"]

UNSET = [
    cell(case, "plain", "retention-unset") for case in ("gemma", "dsv4-stock", "full", "dsv4-rows")
]
PREFIX = [t % 50 for t in range(100, 164)]
HOST = {"backend": "host", "gib": 0.01}


def engine(configuration: Configuration, switch, **extra: Any) -> TierEngine:
    switch(configuration.environment)
    transfer = transfer_config(**HOST, **extra)
    return TierEngine(
        configuration.layout, configuration.options(4.0), transfer, configuration.oracle(1)
    )


def stored_and_forgotten(running: TierEngine) -> None:
    """Let the prefix be in the tier alone."""
    assert answer(running, "stores", PREFIX) == 0
    answer(running, "end", [1, 2, 3])
    assert running.scheduler.kv_cache_manager.reset_prefix_cache()


@pytest.fixture
def torn(monkeypatch):
    """Return a function that says whether every object is torn from now on."""
    why = host_memory.why_unusable

    def set_to(is_torn: bool) -> None:
        monkeypatch.setattr(host_memory, "why_unusable", (lambda *a: "torn") if is_torn else why)

    return set_to


@pytest.mark.parametrize("configuration", UNSET, ids=str)
def test_whoever_names_the_tier_gets_our_coordinator(configuration, switch):
    """vLLM's own may give blocks of one group's hit to another group's external tokens."""
    running = engine(configuration, switch)
    assert isinstance(running.manager.coordinator, AscendHybridKVCacheCoordinator)
    assert running.manager.coordinator.plan.is_stock


def test_without_the_tier_nothing_changes(switch):
    configuration = cell("gemma", "plain", "retention-unset")
    switch(configuration.environment)
    from tests.e2e.core.engine import Engine

    running = Engine(configuration.layout, configuration.options(4.0), configuration.oracle(1))
    assert not isinstance(running.manager.coordinator, AscendHybridKVCacheCoordinator)


@pytest.mark.parametrize("async_above_mib", [0, 64])
@pytest.mark.parametrize("configuration", UNSET, ids=str)
def test_a_failed_load_is_computed(configuration, async_above_mib, switch, torn):
    running = engine(configuration, switch, async_above_mib=async_above_mib)
    stored_and_forgotten(running)
    running.worker.lose_memory()
    torn(True)
    answer(running, "again", PREFIX)
    assert running.tier.counts.failed_loads == 1
    assert len(running.outputs["again"]) == 4, "and the oracle has proved every row of it"


@pytest.mark.parametrize("profile", ["stock", "best"])
def test_what_rests_on_anothers_failed_load_is_not_stored(profile, switch, torn, monkeypatch):
    """A second request hits, in the same step, blocks that the first one's load was to fill."""
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", profile)
    configuration = cell("full", "plain", "retention-unset")
    running = TierEngine(
        configuration.layout,
        configuration.options(4.0),
        transfer_config(**HOST),
        configuration.oracle(1),
    )
    stored_and_forgotten(running)
    running.worker.lose_memory()
    torn(True)
    branch = [*PREFIX, 11, 12, 13, 14]
    running.add("loads", [*branch, 15], 3)
    running.add("hits", [*branch, *[21] * 14], 3)
    running.step()
    torn(False)
    running.run()
    assert running.tier.counts.failed_loads > 0
    answer(running, "end again", [1, 2, 4])
    assert running.scheduler.kv_cache_manager.reset_prefix_cache()
    running.worker.lose_memory()
    hit = answer(running, "reads what was stored", [*branch, *[21] * 14, 9])
    assert hit > len(PREFIX), "and the oracle has proved every row of it"


class Several(MultiConnector, SupportsHMA):
    """vLLM 0.20.2's moves caches of one kind only, and the model here has no others."""

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        return self.request_finished(request, *block_ids)


class EngineOfSeveral(TierEngine):
    """A tier as a part of ``MultiConnector``."""

    @staticmethod
    def worker_half(connector: Any) -> Any:
        return connector._connectors[0].worker_half

    @property
    def tier(self) -> Any:
        return self.scheduler.connector._connectors[0].scheduler_half


def test_in_a_multi_connector_it_is_computed_whatever_the_policy_says_of_others(switch, torn):
    configuration = cell("full", "plain", "retention-unset")
    switch(configuration.environment)
    part = transfer_config(**HOST)
    several = KVTransferConfig(
        kv_connector="Several",
        kv_connector_module_path=__name__,
        kv_role="kv_both",
        kv_load_failure_policy="fail",
        kv_connector_extra_config={
            "connectors": [
                {
                    "kv_connector": part.kv_connector,
                    "kv_connector_module_path": part.kv_connector_module_path,
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": part.kv_connector_extra_config,
                }
            ]
        },
    )
    running = EngineOfSeveral(
        configuration.layout, configuration.options(4.0), several, configuration.oracle(1)
    )
    stored_and_forgotten(running)
    running.worker.lose_memory()
    torn(True)
    answer(running, "again", PREFIX)
    assert running.tier.counts.failed_loads == 1
    assert len(running.outputs["again"]) == 4, "it was answered, not failed"
    assert several.kv_load_failure_policy == "fail"
    assert not running.scheduler.recompute_kv_load_failures, "what others hand over still fails"
