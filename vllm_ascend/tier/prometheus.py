# SPDX-License-Identifier: Apache-2.0
"""The tier's Prometheus metrics, with vLLM's labels and in its registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from prometheus_client import Counter, Histogram
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

from vllm_ascend.tier.statistics import NOT_STORED, UNUSABLE

_PREFIX = "vllm_ascend:tier_"
# From a look-up that finds nothing to a load that is given up.
SECONDS_BUCKETS = (
    *(1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
)


class Metric(NamedTuple):
    """One metric.

    Attributes:
        kind: Its class in ``prometheus_client``.
        field: Of ``TierCounts``.
        name: Behind the prefix.
        label: A label of its own; empty: none.
        values: The label's values.
    """

    kind: type
    field: str
    name: str
    documentation: str
    label: str = ""
    values: tuple[str, ...] = ()


METRICS = (
    Metric(Counter, "hit_tokens", "hit_tokens", "Prompt tokens that loads from the tier bring."),
    Metric(Counter, "loads", "loads", "Loads from the tier that were ordered."),
    Metric(
        Counter, "failed_loads", "failed_loads", "Loads that failed; their requests were computed."
    ),
    Metric(Counter, "loaded_bytes", "loaded_bytes", "Bytes of the loads that were ordered."),
    Metric(Counter, "stored_bytes", "stored_bytes", "Bytes that were stored in the tier."),
    Metric(Counter, "evicted", "evictions", "Objects of the tier given up for others."),
    Metric(
        Counter,
        "not_stored",
        "not_stored",
        "Objects that were not stored: no room in the tier (full), no free buffer (buffers), the "
        "store refused (store), the step failed (failed_step), or it rested on a load that failed "
        "(load_failed).",
        "why",
        NOT_STORED,
    ),
    Metric(
        Counter,
        "unusable",
        "unusable",
        "Objects that could not be loaded: gone, torn, of another layout (foreign), with changed "
        "bytes; and loads that took too long (late) or that the store refused (error).",
        "why",
        UNUSABLE,
    ),
    Metric(Counter, "pauses", "pauses", "Times that a slow or dead tier was left alone for 30 s."),
    Metric(Counter, "disk_written_bytes", "disk_written_bytes", "Bytes written to the disk below."),
    Metric(Counter, "disk_read_bytes", "disk_read_bytes", "Bytes that came up from the disk."),
    Metric(Counter, "disk_evicted", "disk_evictions", "Objects on the disk given up for others."),
    Metric(
        Counter,
        "disk_not_written",
        "disk_not_written",
        "Objects that the disk did not take: it is slow, full or fails.",
    ),
    Metric(Counter, "disk_not_read", "disk_not_read", "Objects that the disk could not give."),
    Metric(
        Counter, "disk_pauses", "disk_pauses", "Times that a slow or failing disk was left alone."
    ),
    Metric(Histogram, "load_seconds", "load_seconds", "Time of a load, in seconds."),
    Metric(Histogram, "look_up_seconds", "lookup_seconds", "Time of a look-up, in seconds."),
)


class TierPromMetrics(KVConnectorPromMetrics):
    """The metrics of all engines that one API server talks to; all start at zero."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._made = [(metric, self._make(metric, metric_types)) for metric in METRICS]

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what is new of one engine; see ``TierCounts.as_data``."""
        labels = self.per_engine_labelvalues[engine_idx]
        for metric, made in self._made:
            value = transfer_stats_data.get(metric.field)
            if value:
                _add(made, labels, value)

    def _make(self, metric: Metric, metric_types: Mapping[type, type]) -> Any:
        made: Any = metric_types[metric.kind](
            name=_PREFIX + metric.name,
            documentation=metric.documentation,
            labelnames=[*self._labelnames, *([metric.label] if metric.label else ())],
            **({"buckets": SECONDS_BUCKETS} if metric.kind is Histogram else {}),
        )
        own_labels = [(value,) for value in metric.values] if metric.label else [()]
        for labels, own in product(self.per_engine_labelvalues.values(), own_labels):
            made.labels(*labels, *own)
        return made


def _add(
    made: Any, labels: Sequence[object], value: int | Mapping[str, int] | Sequence[float]
) -> None:
    # Metrics are asked for their labels anew each time: Ray's keep those asked for last.
    if isinstance(value, Mapping):
        for own, number in value.items():
            made.labels(*labels, own).inc(number)
    elif isinstance(value, Sequence):
        for seconds in value:
            made.labels(*labels).observe(seconds)
    else:
        made.labels(*labels).inc(value)
