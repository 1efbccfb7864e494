# SPDX-License-Identifier: Apache-2.0
"""What the prefix cache counted, told beside vLLM's own stat loggers."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.logger import init_logger
from vllm.v1.metrics.loggers import (
    AggregateStatLoggerBase,
    LoggingStatLogger,
    PerEngineStatLoggerAdapter,
    PrometheusStatLogger,
)
from vllm.v1.metrics.stats import SchedulerStats

from vllm_ascend.dp_routing.client import process_stats
from vllm_ascend.metrics.prometheus import PrefixCacheProm
from vllm_ascend.metrics.routing import RoutingProm
from vllm_ascend.metrics.summary import PrefixCacheSummary
from vllm_ascend.prefix_cache_config import load_config

# Under vLLM's own name, whose handlers print it.
_logger = init_logger("vllm.plugins.vllm_ascend_backport")

_ALL_ENGINES = -1  # how vLLM numbers a logger that sums all engines up


class PrefixCacheStatLogger(AggregateStatLoggerBase):
    """One per API server: Prometheus for all engines, a log line where vLLM writes its own."""

    def __init__(self, vllms: Sequence[AggregateStatLoggerBase]) -> None:
        """Register the metrics.

        Args:
            vllms: The other loggers, which tell engines, labels, metric classes and prefixes of
                lines. One of them is vLLM's for Prometheus, or takes its place.
        """
        prometheus = next(each for each in vllms if isinstance(each, PrometheusStatLogger))
        self._cache = PrefixCacheProm(prometheus) if load_config().changes_caching else None
        self._routing = RoutingProm(prometheus) if process_stats() is not None else None
        self._lines = [(each, PrefixCacheSummary()) for each in _line_writers(vllms)]

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: object,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        """Add a step's numbers; every API server gets those of its own steps."""
        update = None if scheduler_stats is None else scheduler_stats.ascend_prefix_cache
        if update is not None:
            if self._cache is not None:
                self._cache.record(update, engine_idx)
            for writer, summary in self._lines:
                if writer.engine_index in (engine_idx, _ALL_ENGINES):
                    summary.observe(update, engine_idx)
        if self._routing is not None and (stats := process_stats()) is not None:
            self._routing.record(stats)

    def log(self) -> None:
        """Write a line for each of vLLM's that had news."""
        for writer, summary in self._lines:
            if (line := summary.take_line()) is not None:
                _logger.info("%sPrefix cache: %s", writer.log_prefix, line)

    def log_engine_initialized(self) -> None:
        """Say nothing: the scheduler has told what is in force."""


def _line_writers(vllms: Sequence[AggregateStatLoggerBase]) -> list[LoggingStatLogger]:
    writers: list[object] = []
    for each in vllms:
        if isinstance(each, PerEngineStatLoggerAdapter):
            writers += each.per_engine_stat_loggers.values()
        else:
            writers.append(each)
    return [each for each in writers if isinstance(each, LoggingStatLogger)]
