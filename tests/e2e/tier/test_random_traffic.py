# SPDX-License-Identifier: Apache-2.0
"""Random traffic with a tier below: every row that is read is proved, whoever has computed it."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import pytest

from tests.e2e.core.configurations import CASES, MODES, SWITCHES, Configuration
from tests.e2e.core.workload import Traffic, Workload
from tests.e2e.tier.tier_engine import TierEngine, transfer_config
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.releases import running_release
from vllm_ascend.tier import layout

_CASES = {case.name: case for case in CASES}
_MODES = {mode.name: mode for mode in MODES}
_SWITCHES = {switches.name: switches for switches in SWITCHES}


def cell(case: str, mode: str, switches: str) -> Configuration:
    return Configuration(_CASES[case], _MODES[mode], _SWITCHES[switches])


CELLS = [
    cell("dsv4-rows", "plain", "best"),
    cell("dsv4-rows", "priority", "partial-sparse-0"),
    cell("dsv4-rows", "async", "best"),
    cell("dsv4-rows", "mtp3", "best"),
    cell("dsv4-rows", "async-mtp", "pin-best"),
    cell("dsv4-rows", "plain", "retention-unset"),
    cell("dsv4-stock", "plain", "partial-0"),
    cell("gemma", "async", "spare-0"),
    cell("full", "plain", "retention-unset"),
    cell("gemma", "plain", "retention-unset"),
    cell("gemma-wide", "async", "retention-unset"),
]
if running_release().has_dspark:
    CELLS += [
        cell("dsv4-rows", "dspark3", "best"),
        cell("dsv4-stock", "async-dspark7", "partial-0"),
    ]


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(layout, "LEAST_UNIT_TOKENS", 1)


def with_resets(engine: TierEngine, traffic: Traffic) -> Traffic:
    """Return traffic with more resets under running requests, which stock vLLM cannot do."""
    is_ours = isinstance(engine.manager.coordinator, AscendHybridKVCacheCoordinator)
    return replace(traffic, busy_reset=5 * traffic.busy_reset * is_ours)


def run(configuration: Configuration, switch, room: float, gib: float, num_steps: int, **extra):
    """Run traffic until everything has ended and been checked."""
    switch(configuration.environment)
    seed = crc32(f"{configuration} {room} {gib}".encode())
    transfer = transfer_config(backend="host", gib=gib, **extra)
    engine = TierEngine(
        configuration.layout, configuration.options(room), transfer, configuration.oracle(seed)
    )
    Workload(engine, with_resets(engine, configuration.traffic), seed).run(num_steps)
    engine.index.check_integrity()
    return engine


@pytest.mark.parametrize("configuration", CELLS, ids=str)
def test_no_step_reads_or_writes_wrong_rows(configuration, switch):
    brought = 0
    for room, gib, async_above_mib in ((1.3, 0.01, 0), (1.2, 0.01, 64), (1.3, 0.001, 64)):
        engine = run(configuration, switch, room, gib, 150, async_above_mib=async_above_mib)
        brought += engine.tier.counts.hit_tokens
        assert engine.tier.counts.failed_loads == 0
    assert brought, "nothing was loaded, so it proves nothing"
