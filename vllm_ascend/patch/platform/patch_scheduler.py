# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/sched/scheduler.py``: tells the KV cache manager what it works with."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from vllm.config import VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from vllm_ascend.core.kv_cache_coordinator import (
    AscendHybridKVCacheCoordinator,
    coordinators_told,
)
from vllm_ascend.patch.features import RETENTION, UNWRITTEN
from vllm_ascend.patch.table import Patch, Wrap


def _num_unconfirmed_tokens(vllm_config: VllmConfig) -> int:
    speculative_config = vllm_config.speculative_config
    if speculative_config is None or not vllm_config.scheduler_config.async_scheduling:
        return 0
    return speculative_config.num_speculative_tokens


def wrap_init(original: Callable) -> Callable:
    signature = inspect.signature(original)

    def __init__(self: Scheduler, *args, **kwargs) -> None:
        arguments = signature.bind(self, *args, **kwargs).arguments
        with coordinators_told(
            block_size=arguments["block_size"],
            num_unconfirmed_tokens=_num_unconfirmed_tokens(arguments["vllm_config"]),
        ):
            original(self, *args, **kwargs)

    return __init__


def wrap_preempt_request(original: Callable) -> Callable:
    def _preempt_request(self: Scheduler, request: Request, timestamp: float) -> None:
        coordinator = self.kv_cache_manager.coordinator
        if isinstance(coordinator, AscendHybridKVCacheCoordinator):
            coordinator.withdraw_unwritten(request.request_id)
        original(self, request, timestamp)

    return _preempt_request


PATCHES: tuple[Patch, ...] = (
    Wrap(
        target="vllm.v1.core.sched.scheduler:Scheduler.__init__",
        replacement=wrap_init,
        upstream_sha256="bc95a9f15113e884",
        aliases=(),
        **RETENTION,
        why="vLLM 0.20.2 does not tell the KV cache manager the scheduler's block size, nor how "
        "many tokens it may count as computed too early.",
        skip_if_present="vllm.v1.core.kv_cache_manager:KVCacheManager.__init__"
        "(scheduler_block_size)",
    ),
    Wrap(
        target="vllm.v1.core.sched.scheduler:Scheduler._preempt_request",
        replacement=wrap_preempt_request,
        upstream_sha256="128202fc69d1f908",
        aliases=(),
        **UNWRITTEN,
        why="By priority, a request can be preempted in the step that it was just scheduled in; "
        "what it entered is never written.",
    ),
)
