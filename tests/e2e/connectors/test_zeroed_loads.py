# SPDX-License-Identifier: Apache-2.0
"""New blocks are zeroed, but not those that a load beside the steps writes: it would be undone."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1

from tests.e2e.connectors.test_random_loads import run
from tests.e2e.core.configurations import Configuration
from vllm_ascend.core import kv_cache_coordinator

pytestmark = pytest.mark.skipif(
    not hasattr(KVConnectorBase_V1, "get_loaded_kv_cache_group_ids"),
    reason="this vLLM's scheduler leaves them out itself",
)


def test_what_a_load_writes_is_not_zeroed(switch, monkeypatch):
    cell = Configuration.named("dsv4-rows", "plain", "best")
    engine = run(cell, switch, "recompute", room=4.0, num_steps=60)
    assert engine.scheduler.needs_kv_cache_zeroing
    assert any(is_async for _, is_async in engine.scheduler.connector.offered.values())
    monkeypatch.setattr(kv_cache_coordinator, "unzeroed", lambda *args: nullcontext())
    with pytest.raises(AssertionError, match="blocks that are zeroed"):
        run(cell, switch, "recompute", room=4.0, num_steps=60)
