# SPDX-License-Identifier: Apache-2.0
"""The two schedulers that are compared differ in their rule, whatever the shell has set."""

import pytest

from benchmarks.eviction_cost import RULES, build
from benchmarks.paired_steps import SWITCHES


@pytest.mark.parametrize("left_over", [None, *RULES])
def test_each_side_has_its_own_rule(left_over: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in SWITCHES.items():
        monkeypatch.setenv(variable, value)
    if left_over is not None:
        monkeypatch.setenv(*RULES[left_over])
    rules = []
    for rule in (None, "learned", "protect"):
        caching = build(4, rule).kv_cache_manager.coordinator.caching
        rules.append((caching.learned is not None, caching.returning is not None))
    assert rules == [(False, False), (True, False), (False, True)]
