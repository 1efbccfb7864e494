# SPDX-License-Identifier: Apache-2.0
"""The two schedulers that are compared differ in their order, whatever the shell has set."""

import pytest

from benchmarks.eviction_cost import ORDERS, build
from benchmarks.paired_steps import SWITCHES


@pytest.mark.parametrize("left_over", [None, *ORDERS])
def test_each_side_has_its_own_order(
    left_over: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in SWITCHES.items():
        monkeypatch.setenv(variable, value)
    if left_over is not None:
        monkeypatch.setenv("VLLM_ASCEND_EVICTION", left_over)
    protects = []
    for order in ORDERS:
        caching = build(4, order).kv_cache_manager.coordinator
        protects.append(caching.returning is not None)
    assert protects == [False, True]
