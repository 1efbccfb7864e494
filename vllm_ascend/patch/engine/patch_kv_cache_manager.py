# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/kv_cache_manager.py``: alignment in; the methods that a class of ours overrides.

``patch_scheduler.py`` puts that class over the manager of a scheduler.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.core.kv_cache_manager import KVCacheManager

from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.kv_cache_manager import CachingKVCacheManager, put_over
from vllm_ascend.core.plan.scheduler_facts import building_scheduler
from vllm_ascend.patch.features import COORDINATOR, RETENTION
from vllm_ascend.patch.table import Patch, changes, overrides

_CLASS = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_ALIGNMENT = {**RETENTION, "superseded_by": f"{_CLASS}.__init__(scheduler_block_size)"}


@changes(f"{_CLASS}.__init__", _ALIGNMENT)
def wrap_init(
    self: KVCacheManager,
    *args,
    scheduler_block_size: int | None = None,
    original: Callable,
    **kwargs,
) -> None:
    """A manager without a scheduler is told the alignment, as in later releases."""
    facts = {} if scheduler_block_size is None else {"block_size": scheduler_block_size}
    with building_scheduler(**facts):
        original(self, *args, **kwargs)
    if isinstance(self.coordinator, AscendHybridKVCacheCoordinator):
        self.__class__ = put_over(self.__class__, CachingKVCacheManager)


PATCHES: tuple[Patch, ...] = (
    wrap_init,
    *overrides(CachingKVCacheManager, _CLASS, COORDINATOR),
)
