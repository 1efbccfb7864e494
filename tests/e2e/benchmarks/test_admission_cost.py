# SPDX-License-Identifier: Apache-2.0
"""The two schedulers let requests in differently, whatever the shell has set, and some wait."""

from itertools import islice

import pytest

from benchmarks.admission_cost import ADMISSIONS, build, timed_steps
from benchmarks.paired_steps import SWITCHES


@pytest.mark.parametrize("left_over", [None, *ADMISSIONS])
def test_each_side_lets_requests_in_its_own_way(
    left_over: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in SWITCHES.items():
        monkeypatch.setenv(variable, value)
    if left_over is not None:
        monkeypatch.setenv("VLLM_ASCEND_ADMISSION", left_over)
    built = [build(admission, 4, 1, 2000) for admission in ADMISSIONS]
    orders = [each.kv_cache_manager.coordinator.waiting_order for each in built]
    assert [order is not None for order in orders] == [False, True]


def test_requests_wait_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in SWITCHES.items():
        monkeypatch.setenv(variable, value)
    scheduler = build("cached", 16, 1, 20_000)
    assert all(ms > 0 for ms in islice(timed_steps(scheduler, 16, 20_000), 30))
    assert scheduler.waiting and scheduler.running
