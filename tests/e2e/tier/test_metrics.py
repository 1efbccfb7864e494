# SPDX-License-Identifier: Apache-2.0
"""The tier's metrics stand beside the prefix cache's, as vLLM's own loggers register them."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from vllm.v1.metrics.loggers import StatLoggerManager
from vllm.v1.metrics.prometheus import get_prometheus_registry, unregister_vllm_metrics

from tests.e2e.tier.configured import HOST, PLAIN, build
from vllm_ascend.metrics.prometheus import unregister
from vllm_ascend.tier.prometheus import METRICS


@pytest.fixture(autouse=True)
def empty_registry():
    yield
    unregister_vllm_metrics()
    unregister()


def test_every_logger_of_an_engine_with_a_tier_shows_all_metrics(switch):
    """vLLM builds another logger when an engine is scaled; it registers the tier's itself."""
    switch(PLAIN.environment)
    config = build(PLAIN, 4.0, 1, HOST).scheduler.vllm_config
    for engines in ([0], [0, 1]):
        StatLoggerManager(config, engines)
        text = generate_latest(get_prometheus_registry()).decode()
        for engine in map(str, engines):
            lines = [line for line in text.splitlines() if f'engine="{engine}"' in line]
            names = {line.partition("{")[0] for line in lines}
            for metric in METRICS:
                stem = f"vllm_ascend:tier_{metric.name}"
                assert names & {f"{stem}_total", f"{stem}_count"}, (stem, engine)
            assert "vllm_ascend:prefix_hit_tokens_count" in names
