# SPDX-License-Identifier: Apache-2.0
"""Names, labels and buckets are what docs/metrics.md says."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vllm_ascend.core.reporting.cache_stats import CacheUpdate
from vllm_ascend.dp_routing.stats import RoutingStats
from vllm_ascend.metrics.prometheus import (
    EVICTED_TIERS,
    HIT_TOKENS_BUCKETS,
    KINDS,
    LOOK_UP_SECONDS_BUCKETS,
    TIERS,
    PrefixCacheProm,
)
from vllm_ascend.metrics.routing import RoutingProm
from vllm_ascend.tier.prometheus import METRICS

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def logger(registry: CollectorRegistry) -> SimpleNamespace:
    """What metrics take of vLLM's logger: two engines, and classes, for a registry of its own."""

    def into(metric):
        return lambda **arguments: metric(registry=registry, **arguments)

    return SimpleNamespace(
        per_engine_labelvalues={4: ["model", "4"], 5: ["model", "5"]},
        _gauge_cls=into(Gauge),
        _counter_cls=into(Counter),
        _histogram_cls=into(Histogram),
    )


@pytest.fixture
def metrics(logger: SimpleNamespace) -> PrefixCacheProm:
    logger.per_engine_labelvalues = {0: ["model", "0"], 1: ["model", "1"]}
    return PrefixCacheProm(logger)


def update(**fields) -> CacheUpdate:
    zeros = {"evicted": (0,) * len(EVICTED_TIERS), "kept": (0,) * len(KINDS)}
    return CacheUpdate(**{"blocks": tuple(range(len(TIERS))), **zeros, **fields})


def value(registry: CollectorRegistry, name: str, engine: int = 0, **labels: str) -> float | None:
    every = {"model_name": "model", "engine": str(engine), **labels}
    return registry.get_sample_value(f"vllm_ascend:{name}", every)


def test_engines_are_told_apart(metrics, registry):
    metrics.record(update(partial_hits=2, copied_blocks=3), 1)
    metrics.record(update(partial_hits=1), 1)
    assert value(registry, "partial_hits_total", 1) == 3
    assert value(registry, "copied_blocks_total", 1) == 3
    assert value(registry, "partial_hits_total", 0) == 0
    assert value(registry, "kv_cache_blocks", 1, tier="cached") == TIERS.index("cached")
    assert value(registry, "kv_cache_blocks", 0, tier="cached") is None, "not known yet"


def test_admission_is_counted(metrics, registry):
    told = update(lost_prompts=1, passed_requests=2, held_steps=3, reserved_blocks=4)
    metrics.record(told, 0)
    metrics.record(told, 0)
    names = ("lost_prompts_total", "passed_requests_total", "held_steps_total", "reserved_blocks")
    assert [value(registry, name) for name in names] == [2, 4, 6, 4]


def test_labels_belong_to_their_numbers(metrics, registry):
    metrics.record(update(kept=(1, 2, 3, 4), evicted=tuple(range(5, 5 + len(EVICTED_TIERS)))), 0)
    for kind, number in {"replay": 1, "finish": 2, "interval": 3, "junction": 4}.items():
        assert value(registry, "kept_boundaries_total", kind=kind) == number
    for tier, number in {"scratch": None, "spare": 5, "cached": 6, "protected": 7}.items():
        assert value(registry, "kv_cache_evictions_total", tier=tier) == number


def test_a_miss_is_in_the_first_bucket(metrics, registry):
    metrics.record(update(hit_tokens=(0, 0, 128, 1 << 20)), 0)
    buckets = {le: value(registry, "prefix_hit_tokens_bucket", le=le) for le in ("1.0", "64.0")}
    assert buckets == {"1.0": 2, "64.0": 2}
    assert value(registry, "prefix_hit_tokens_bucket", le="128.0") == 3
    assert value(registry, "prefix_hit_tokens_bucket", le="1.048576e+06") == 4
    assert value(registry, "prefix_hit_tokens_sum") == 128 + (1 << 20)


def test_buckets_ascend():
    assert tuple(2**i for i in range(21)) == HIT_TOKENS_BUCKETS
    assert list(LOOK_UP_SECONDS_BUCKETS) == sorted(set(LOOK_UP_SECONDS_BUCKETS))


def test_choices_are_counted_once_under_the_engines_own_numbers(logger, registry):
    """Engines 4 and 5 are this front end's ranks 0 and 1, as with hybrid balancing."""
    metrics, stats = RoutingProm(logger), RoutingStats()
    stats.chosen[1, "cache"] = 2
    stats.note_start(1, predicted=256, hit=256)
    stats.seconds.append(0.0003)
    metrics.record(stats)
    stats.note_start(1, predicted=256, hit=128)
    metrics.record(stats)

    def of(name: str, **labels: str) -> float | None:
        labels = {"model_name": "model", "engine": "5", **labels}
        return registry.get_sample_value(f"vllm_ascend:{name}", labels)

    assert of("dp_choices_total", reason="cache") == 2
    assert of("dp_choices_total", reason="load") == 0
    assert (of("dp_expected_hit_tokens_total"), of("dp_hit_tokens_total")) == (512, 384)
    assert of("dp_prediction_error_tokens_total") == 128
    assert of("dp_predictions_total", outcome="exact") == 1
    assert of("dp_predictions_total", outcome="other") == 1
    assert of("dp_choice_seconds_count", engine="4") == 1


def test_the_document_names_every_metric_and_no_other(metrics, logger, registry):
    metrics.record(update(), 0)
    RoutingProm(logger)
    served = re.findall(r"^# TYPE (vllm_ascend:\w+)", generate_latest(registry).decode(), re.M)
    names = {name for name in served if not name.endswith("_created")}
    for metric in METRICS:
        names.add(f"vllm_ascend:tier_{metric.name}" + "_total" * (metric.kind is Counter))
    text = DOCUMENT.read_text()
    told = {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"vllm_ascend:\w+", text)
    }
    assert told == names
