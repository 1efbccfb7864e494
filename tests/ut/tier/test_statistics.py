# SPDX-License-Identifier: Apache-2.0
"""What is counted reaches the scheduler, Prometheus and the log, once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from vllm_ascend.tier.prometheus import METRICS, TierPromMetrics
from vllm_ascend.tier.statistics import NOT_STORED, UNUSABLE, TierCounts, TierStats


def counts(**values) -> TierCounts:
    made = TierCounts()
    for name, value in values.items():
        kept = getattr(made, name)
        if isinstance(value, dict):
            kept.update(value)
        else:
            setattr(made, name, value)
    return made


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry) -> TierPromMetrics:
    types = {
        kind: lambda kind=kind, **arguments: kind(registry=registry, **arguments)
        for kind in (Counter, Gauge, Histogram)
    }
    config = SimpleNamespace(kv_transfer_config=None)
    return TierPromMetrics(config, types, ["model_name", "engine"], {0: ["m", "0"], 1: ["m", "1"]})


def test_every_count_but_those_of_kinds_of_objects_has_a_metric():
    exported = {metric.field for metric in METRICS}
    assert {*TierCounts.__dataclass_fields__} - exported == {"stored_units", "stored_tails"}


def test_everything_is_shown_at_zero_before_anything_was_counted(metrics, registry):
    get = registry.get_sample_value
    for engine in ("0", "1"):
        labels = {"model_name": "m", "engine": engine}
        assert get("vllm_ascend:tier_loads_total", labels) == 0
        assert get("vllm_ascend:tier_load_seconds_count", labels) == 0
        for why in NOT_STORED:
            assert get("vllm_ascend:tier_not_stored_total", {**labels, "why": why}) == 0
        for why in UNUSABLE:
            assert get("vllm_ascend:tier_unusable_total", {**labels, "why": why}) == 0


def test_what_workers_and_scheduler_count_adds_up(metrics, registry):
    worker = TierStats(counts(load_seconds=[0.5, 0.25], unusable={"gone": 2}).as_data())
    scheduler = TierStats(counts(loads=3, hit_tokens=512, load_seconds=[0.25]).as_data())
    total = TierStats({}).aggregate(worker).aggregate(scheduler)
    metrics.observe(total.data, 1)
    metrics.observe(total.data, 1)
    labels = {"model_name": "m", "engine": "1"}
    get = registry.get_sample_value
    assert get("vllm_ascend:tier_loads_total", labels) == 6
    assert get("vllm_ascend:tier_hit_tokens_total", labels) == 1024
    assert get("vllm_ascend:tier_load_seconds_sum", labels) == 2
    assert get("vllm_ascend:tier_unusable_total", {**labels, "why": "gone"}) == 4
    assert get("vllm_ascend:tier_loads_total", {"model_name": "m", "engine": "0"}) == 0
    assert total.reduce()["tier ms per load"] == pytest.approx(333.3)


def test_what_was_taken_is_not_told_again():
    made = counts(loads=1, load_seconds=[0.5])
    first = made.as_data()
    made.clear()
    made.load_seconds.append(1.0)
    assert first == {"loads": 1, "load_seconds": [0.5]}
    assert made.as_data() == {"load_seconds": [1.0]}
