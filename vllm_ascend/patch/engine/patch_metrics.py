# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/metrics``: what the prefix cache counted, from the scheduler to Prometheus and the log.

The numbers travel as a field of their own of vLLM's ``SchedulerStats``. vLLM's plugin group for
stat loggers is no way to receive them: offline engines do not load it, a checkout has no entry
points, loading one switches statistics on that the user switched off, and vLLM's own Prometheus
logger, which is built after all plugins, takes every metric called ``vllm*`` out of the registry.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.metrics.loggers import StatLoggerManager

from vllm_ascend.core.reporting.cache_stats import CacheUpdate
from vllm_ascend.metrics.prometheus import unregister
from vllm_ascend.metrics.stat_logger import PrefixCacheStatLogger
from vllm_ascend.patch.features import DP_ROUTING, METRICS
from vllm_ascend.patch.table import AddField, Patch, changes

_STATS = "vllm.v1.metrics.stats:SchedulerStats"


@changes("vllm.v1.metrics.loggers:StatLoggerManager.__init__", METRICS)
def wrap_manager_init(self: StatLoggerManager, *args, original: Callable, **kwargs) -> None:
    """Puts a stat logger behind vLLM's own, which have registered their metrics by then."""
    unregister()  # not later: vLLM's own have registered the tier's metrics as well
    original(self, *args, **kwargs)
    self.stat_loggers.append(PrefixCacheStatLogger(self.stat_loggers))


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
    wrap_manager_init,
)
