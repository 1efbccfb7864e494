# SPDX-License-Identifier: Apache-2.0
"""The prefix cache's Prometheus metrics, in vLLM's registry and with vLLM's labels.

They are made by the metric classes of vLLM's own stat logger, and so follow it wherever it goes:
into the files of ``PROMETHEUS_MULTIPROC_DIR`` with several API servers, or to Ray. With several
API servers each is told of some steps only; what it is told are differences, so its counters and
histograms add up with the others', and of the gauge the value set last is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from prometheus_client import REGISTRY
from vllm.v1.metrics.loggers import PrometheusStatLogger

from vllm_ascend.core.policy.ranks import TIERS as FREE_RANKS
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.core.reporting.cache_stats import BoundaryKind, CacheUpdate

_PREFIX = "vllm_ascend:"
# Dashboards know kept blocks as cached ones.
FREE_TIERS = tuple("cached" if r is Rank.KEPT else r.name.lower() for r in FREE_RANKS)
TIERS = ("used", *FREE_TIERS)
EVICTED_TIERS = FREE_TIERS[FREE_RANKS.index(Rank.SPARE) :]
KINDS = tuple(kind.name.lower() for kind in BoundaryKind)

# Fields of an update that are added up as they are.
_COUNTERS = {
    "partial_hits": "Requests let in with a hit that ends inside a block.",
    "copied_blocks": "Blocks copied because a hit ends inside them.",
    "junction_misses": (
        "Requests that hit less than they matched: no tail was cached where they leave it."
    ),
    "lost_prompts": "Prompts that returned when too much of them had been given up.",
    "passed_requests": "Requests let in before others that came earlier.",
    "held_steps": "Steps that let nobody else in so that the cache keeps its share.",
}

# A miss is in the first one; DeepSeek-V4's longest prompt is a million tokens.
HIT_TOKENS_BUCKETS = tuple(1 << exponent for exponent in range(21))
# From a short prompt to a million tokens that nearly match.
LOOK_UP_SECONDS_BUCKETS = (
    *(1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3),
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
)


class PrefixCacheProm:
    """The metrics of all engines that one API server talks to.

    Counters and histograms start at zero; the blocks of an engine are unknown, and not shown,
    until its first step.
    """

    def __init__(self, stat_logger: PrometheusStatLogger) -> None:
        """Register the metrics.

        Args:
            stat_logger: vLLM's, whose classes and labels are used. One that is built later takes
                these metrics out of the registry together with its predecessor's.
        """
        self._stat_logger = stat_logger
        self._engines: dict[int, list[object]] = stat_logger.per_engine_labelvalues
        self._blocks = self._make(
            "gauge",
            "kv_cache_blocks",
            "KV cache blocks by tier: used by requests, or free and given up in this order: "
            "scratch (nothing is lost), spare, cached, protected, pinned.",
            "tier",
            multiprocess_mode="mostrecent",
        )
        self._evictions = self._make(
            "counter",
            "kv_cache_evictions",
            "Free blocks given up with the content that they held.",
            "tier",
            EVICTED_TIERS,
        )
        self._kept = self._make(
            "counter", "kept_boundaries", "Boundaries whose window tails were kept.", "kind", KINDS
        )
        self._counters = {
            name: self._make("counter", name, documentation)
            for name, documentation in _COUNTERS.items()
        }
        self._reserved = self._make(
            "gauge",
            "reserved_blocks",
            "Blocks that those who are let in leave to the cache; 0: as many run as fit.",
            multiprocess_mode="mostrecent",
        )
        self._hit_tokens = self._make(
            "histogram",
            "prefix_hit_tokens",
            "Prompt tokens that a request hit when it started.",
            buckets=HIT_TOKENS_BUCKETS,
        )
        self._look_up_seconds = self._make(
            "histogram",
            "prefix_lookup_seconds",
            "Time of a prefix look-up, in seconds.",
            buckets=LOOK_UP_SECONDS_BUCKETS,
        )

    def record(self, update: CacheUpdate, engine: int) -> None:
        """Add what is new of one engine."""
        # Metrics are asked for their labels anew each time: Ray's keep those asked for last.
        labels = self._engines[engine]
        for tier, blocks in zip(TIERS, update.blocks, strict=True):
            self._blocks.labels(*labels, tier).set(blocks)
        for tier, number in zip(EVICTED_TIERS, update.evicted, strict=False):
            _add(self._evictions, number, *labels, tier)
        for kind, number in zip(KINDS, update.kept, strict=False):
            _add(self._kept, number, *labels, kind)
        for name, counter in self._counters.items():
            _add(counter, getattr(update, name), *labels)
        self._reserved.labels(*labels).set(update.reserved_blocks)
        for tokens in update.hit_tokens:
            self._hit_tokens.labels(*labels).observe(tokens)
        for seconds in update.look_up_seconds:
            self._look_up_seconds.labels(*labels).observe(seconds)

    def _make(self, *arguments: Any, **keywords: Any) -> Any:
        return make_metric(self._stat_logger, *arguments, **keywords)


def make_metric(
    stat_logger: PrometheusStatLogger,
    metric: str,
    name: str,
    documentation: str,
    label: str | None = None,
    values: Sequence[str] = (),
    **arguments: Any,
) -> Any:
    """Register a metric, for all engines and all ``values`` of its own label at zero.

    Args:
        stat_logger: vLLM's, whose classes and labels are used.
        metric: ``counter``, ``gauge`` or ``histogram``.
        name: Without the prefix that all of ours have.
        documentation: For people.
        label: A label of its own, besides model and engine.
        values: Of that label.
        **arguments: More for the class.
    """
    made = getattr(stat_logger, f"_{metric}_cls")(
        name=_PREFIX + name,
        documentation=documentation,
        labelnames=["model_name", "engine", *([label] if label else ())],
        **arguments,
    )
    own_labels = [(value,) for value in values] if label else [()]
    for labels, own in product(stat_logger.per_engine_labelvalues.values(), own_labels):
        made.labels(*labels, *own)
    return made


def unregister() -> None:
    """Take the metrics of an earlier logger out of the registry, as every logger does with vLLM's.

    Some releases of vLLM take all out that have its name in theirs, later ones only their own.
    """
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith(_PREFIX):
            REGISTRY.unregister(collector)


def _add(counter: Any, number: int, *labels: object) -> None:
    if number:
        counter.labels(*labels).inc(number)
