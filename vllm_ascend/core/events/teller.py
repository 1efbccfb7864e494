# SPDX-License-Identifier: Apache-2.0
"""One rank's side: after every step it tells all front ends what has changed in its cache.

The messages take the way of the outputs, from the rank's output queue to each front end. So they
arrive in order, and before the answers that depend on them.
"""

from __future__ import annotations

from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.metrics.stats import SchedulerStats

from vllm_ascend.core.events.kv_event_log import KVEventLog
from vllm_ascend.dp_routing.news import CacheNews, encode_news


def tell(core: EngineCore) -> None:
    """Tell all front ends what is new, if they are told and anything is."""
    log = _log_of(core)
    news = None if log is None else log.take_news()
    if news is not None:
        assert isinstance(core, EngineCoreProc), "only a process of its own has front ends"
        for client_index in range(len(core.addresses.outputs)):
            _send(core, client_index, news)


def tell_all(core: EngineCoreProc, client_index: int) -> bool:
    """Tell one front end all that is cached; return whether this rank tells anything at all."""
    tell(core)
    log = _log_of(core)
    if log is None:
        return False
    _send(core, client_index, log.all_news())
    return True


def _log_of(core: EngineCore) -> KVEventLog | None:
    manager = getattr(core.scheduler, "kv_cache_manager", None)
    log: KVEventLog | None = getattr(getattr(manager, "block_pool", None), "event_log", None)
    return log if log is not None and log.news is not None else None


def _send(core: EngineCoreProc, client_index: int, news: CacheNews) -> None:
    stats = SchedulerStats()
    stats.ascend_cache_news = encode_news(news)
    core.output_queue.put_nowait((client_index, EngineCoreOutputs(scheduler_stats=stats)))
