# SPDX-License-Identifier: Apache-2.0
"""Reads the project's own metrics out of what ``/metrics`` answers."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

_PREFIX = "vllm_ascend:"
_TIMES = f"{_PREFIX}prefix_lookup_seconds"


def own_metrics(text: str, engine: str = "0") -> dict[str, float]:
    """Return one engine's samples by name and own label, as in ``kept_boundaries_total.replay``.

    Times differ from run to run: of look-up times the number is returned. Histograms without their
    cumulative buckets are told by count and sum.
    """
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            name = sample.name.removeprefix(_PREFIX)
            is_time = sample.name.startswith(_TIMES) and not sample.name.endswith("_count")
            if name == sample.name or is_time or name.endswith(("_bucket", "_created")):
                continue
            assert labels.pop("model_name"), sample
            if labels.pop("engine") != engine:
                continue
            key = ".".join((name, *labels.values()))
            assert key not in samples, "a sample is told twice"
            samples[key] = sample.value
    return samples


def difference(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """Return what has grown or shrunk, and by how much; a gauge that was unknown counts from 0."""
    changes = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: change for name, change in changes.items() if change}
