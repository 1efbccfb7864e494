# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/metrics``: what the prefix cache counted, from the scheduler to Prometheus and the log.

The numbers travel as a field of their own of vLLM's ``SchedulerStats``. vLLM's plugin group for
stat loggers is no way to receive them: offline engines do not load it, a checkout has no entry
points, loading one switches statistics on that the user switched off, and vLLM's own Prometheus
logger, which is built after all plugins, takes every metric called ``vllm*`` out of the registry.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm.logger import init_logger
from vllm.v1.metrics.loggers import LoggingStatLogger, PrometheusStatLogger
from vllm.v1.metrics.stats import SchedulerStats

from vllm_ascend.core.reporting.cache_stats import CacheUpdate
from vllm_ascend.dp_routing.client import process_stats
from vllm_ascend.metrics.prometheus import PrefixCacheProm, unregister
from vllm_ascend.metrics.routing import RoutingProm
from vllm_ascend.metrics.summary import PrefixCacheSummary
from vllm_ascend.patch.features import DP_ROUTING, METRICS
from vllm_ascend.patch.table import Add, AddField, Patch, changes
from vllm_ascend.prefix_cache_config import load_config

_STATS = "vllm.v1.metrics.stats:SchedulerStats"
_PROMETHEUS = "vllm.v1.metrics.loggers:PrometheusStatLogger"
_LOGGING = "vllm.v1.metrics.loggers:LoggingStatLogger"

# Under vLLM's own name, whose handlers print it.
_logger = init_logger("vllm.plugins.vllm_ascend_backport")


@changes(f"{_PROMETHEUS}.__init__", METRICS)
def wrap_prometheus_init(self: PrometheusStatLogger, *args, original: Callable, **kwargs) -> None:
    """It empties the registry, so metrics are registered after it."""
    unregister()
    original(self, *args, **kwargs)
    self.ascend_prefix_cache = PrefixCacheProm(self) if load_config().changes_caching else None
    self.ascend_routing = RoutingProm(self) if process_stats() is not None else None


def _update_of(scheduler_stats: SchedulerStats | None) -> CacheUpdate | None:
    return None if scheduler_stats is None else scheduler_stats.ascend_prefix_cache


@changes(f"{_PROMETHEUS}.record", METRICS)
def wrap_prometheus_record(
    self: PrometheusStatLogger,
    scheduler_stats: SchedulerStats | None,
    iteration_stats,
    mm_cache_stats=None,
    engine_idx: int = 0,
    *,
    original: Callable,
) -> None:
    """Gets every step's statistics in every API server."""
    original(self, scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
    update = _update_of(scheduler_stats)
    if update is not None and self.ascend_prefix_cache is not None:
        self.ascend_prefix_cache.record(update, engine_idx)
    if self.ascend_routing is not None and (stats := process_stats()) is not None:
        self.ascend_routing.record(stats)


@changes(f"{_LOGGING}.record", METRICS)
def wrap_logging_record(
    self: LoggingStatLogger,
    scheduler_stats: SchedulerStats | None,
    iteration_stats,
    mm_cache_stats=None,
    engine_idx: int = 0,
    *,
    original: Callable,
) -> None:
    """Sums up a logging interval."""
    original(self, scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
    if (update := _update_of(scheduler_stats)) is not None:
        if self.ascend_prefix_cache is None:
            self.ascend_prefix_cache = PrefixCacheSummary()
        self.ascend_prefix_cache.observe(update, engine_idx)


@changes(f"{_LOGGING}.log", METRICS)
def wrap_log(self: LoggingStatLogger, *, original: Callable) -> None:
    """Adds a line after vLLM's own."""
    original(self)
    summary = self.ascend_prefix_cache
    if summary is not None and (line := summary.take_line()) is not None:
        _logger.info("%sPrefix cache: %s", self.log_prefix, line)


PATCHES: tuple[Patch, ...] = (
    AddField(
        target=f"{_STATS}.ascend_prefix_cache",
        replacement=None,
        type=CacheUpdate | None,
        **METRICS,
        why="Takes the counts to the API server's process.",
    ),
    AddField(
        target=f"{_STATS}.ascend_cache_news",
        replacement=None,
        type=bytes | None,
        **DP_ROUTING,
        why="Carries a rank's cache news in order with its outputs.",
    ),
    wrap_prometheus_init,
    wrap_prometheus_record,
    Add(
        target=f"{_LOGGING}.ascend_prefix_cache",
        replacement=None,
        **METRICS,
        why="Holds the next line's counts.",
    ),
    wrap_logging_record,
    wrap_log,
)
