# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/kv_cache_manager.py``: passes the scheduler's alignment on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vllm.v1.core.kv_cache_manager import KVCacheManager

from vllm_ascend.core.kv_cache_coordinator import SCHEDULER_FACTS
from vllm_ascend.patch.table import Patch, Wrap

_TARGET = "vllm.v1.core.kv_cache_manager:KVCacheManager.__init__"


def wrap_init(original: Callable) -> Callable:
    def __init__(
        self: KVCacheManager, *args, scheduler_block_size: int | None = None, **kwargs
    ) -> None:
        facts = SCHEDULER_FACTS.get()
        if scheduler_block_size is not None:
            facts = replace(facts, block_size=scheduler_block_size)
        token = SCHEDULER_FACTS.set(facts)
        try:
            original(self, *args, **kwargs)
        finally:
            SCHEDULER_FACTS.reset(token)

    return __init__


PATCHES: tuple[Patch, ...] = (
    Wrap(
        target=_TARGET,
        replacement=wrap_init,
        upstream_sha256="bf8b98366d9722c8",
        aliases=(),
        feature="retention",
        why="The coordinator must know the alignment that the scheduler works with.",
        upstream="vllm-project/vllm#43447",
        remove_when="vllm>=0.23",
        skip_if_present=f"{_TARGET}(scheduler_block_size)",
    ),
)
