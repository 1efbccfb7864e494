# SPDX-License-Identifier: Apache-2.0
"""The tier's loads come behind zeroing, and leave rows alone: all new blocks are zeroed."""

from __future__ import annotations

import pytest
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager

from tests.e2e.tier.test_random_traffic import cell, run, small_units
from tests.e2e.tier.tier_engine import OracleTierWorker
from vllm_ascend.tier.connector import GranuleTierConnector
from vllm_ascend.tier.orders import blocks_by_group

__all__ = ["small_units"]

pytestmark = pytest.mark.skipif(
    not hasattr(SingleTypeKVCacheManager, "records_new_block_ids"),
    reason="this vLLM zeroes the blocks of Mamba layers alone",
)


def not_zeroed(switch, monkeypatch) -> tuple[int, int]:
    """Return how many blocks are loaded beside steps, and how many of them are not zeroed."""
    start, loaded, stale = OracleTierWorker.start, set(), set()

    def watch(self, orders):
        for load in (load for load in orders.loads if load.is_async):
            ids = {i for group in blocks_by_group(load.runs).values() for i in group}
            loaded.update(ids)
            stale.update(ids - self.shadow.zeroed - self.shadow.copied)
        start(self, orders)

    with monkeypatch.context() as patch:
        patch.setattr(OracleTierWorker, "start", watch)
        engine = run(cell("dsv4-rows", "plain", "best"), switch, 1.2, 0.01, 200, async_above_mib=0)
    assert engine.scheduler.needs_kv_cache_zeroing
    return len(loaded), len(stale)


def test_blocks_of_loads_are_zeroed(switch, monkeypatch):
    num_loaded, num_stale = not_zeroed(switch, monkeypatch)
    assert (num_loaded > 20, num_stale) == (True, 0)
    monkeypatch.delattr(GranuleTierConnector, "loads_behind_zeroing")  # earlier releases
    monkeypatch.delattr(GranuleTierConnector, "get_loaded_kv_cache_group_ids")  # later ones
    assert not_zeroed(switch, monkeypatch)[1] > 20
