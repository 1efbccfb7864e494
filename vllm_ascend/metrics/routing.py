# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of the choice between data-parallel ranks, one set per API server.

See :mod:`vllm_ascend.metrics.prometheus` for how metrics are registered. Counters of several API
servers add up: each counts the requests that it sent itself.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger

from vllm_ascend.dp_routing.stats import REASONS, RoutingStats
from vllm_ascend.metrics.prometheus import make_metric

OUTCOMES = ("exact", "other")
CHOICE_SECONDS_BUCKETS = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1)


class RoutingProm:
    """The metrics of one API server's choices."""

    def __init__(self, stat_logger: PrometheusStatLogger) -> None:
        """Register the metrics, with vLLM's classes and labels."""

        def make(*arguments: Any, **keywords: Any) -> Any:
            return make_metric(stat_logger, *arguments, **keywords)

        engines = stat_logger.per_engine_labelvalues
        # A front end numbers its ranks from 0; with hybrid balancing its engines start elsewhere.
        self._labels = [engines[engine] for engine in sorted(engines)]
        self._choices = make(
            "counter", "dp_choices", "Requests by rank and by why it was chosen.", "reason", REASONS
        )
        self._expected = make(
            "counter", "dp_expected_hit_tokens", "Hits that were expected when requests were sent."
        )
        self._hits = make("counter", "dp_hit_tokens", "Hits that these requests then had.")
        self._errors = make(
            "counter",
            "dp_prediction_error_tokens",
            "By how much expected and real hits differed, summed over requests.",
        )
        self._predictions = make(
            "counter",
            "dp_predictions",
            "Requests whose hit was exactly the one expected, and others.",
            "outcome",
            OUTCOMES,
        )
        self._gaps = make(
            "counter", "dp_message_gaps", "Times that messages of a rank were missing."
        )
        self._seconds = make(
            "histogram",
            "dp_choice_seconds",
            "Time of a choice, in seconds.",
            buckets=CHOICE_SECONDS_BUCKETS,
        )
        self._told: Counter[tuple[str, int, str]] = Counter()

    def record(self, stats: RoutingStats) -> None:
        """Add what is new."""
        for (rank, reason), number in stats.chosen.items():
            self._add(self._choices, "choices", rank, number, reason)
        for (rank, outcome), number in stats.predictions.items():
            self._add(self._predictions, "predictions", rank, number, outcome)
        per_rank = {
            "expected": (self._expected, stats.predicted_tokens),
            "hits": (self._hits, stats.hit_tokens),
            "errors": (self._errors, stats.error_tokens),
            "gaps": (self._gaps, stats.num_gaps),
        }
        for what, (metric, counter) in per_rank.items():
            for rank, number in counter.items():
                self._add(metric, what, rank, number)
        while stats.seconds:
            # The histogram needs a rank's label; a choice concerns all of them.
            self._seconds.labels(*self._labels[0]).observe(stats.seconds.popleft())

    def _add(self, metric: Any, what: str, rank: int, number: int, label: str = "") -> None:
        """Add to a counter what it has not been told yet of a growing number."""
        new = number - self._told[what, rank, label]
        if new and rank < len(self._labels):
            own = [label] if label else []
            metric.labels(*self._labels[rank], *own).inc(new)
            self._told[what, rank, label] = number
