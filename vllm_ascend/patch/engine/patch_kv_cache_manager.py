# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/kv_cache_manager.py``: alignment in; the class that goes over a manager's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from vllm.v1.core.kv_cache_manager import KVCacheManager

from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.kv_cache_manager import CachingKVCacheManager, put_over
from vllm_ascend.core.plan.scheduler_facts import building_scheduler
from vllm_ascend.patch.features import COORDINATOR, PARTIAL_HITS
from vllm_ascend.patch.table import Add, Patch, changes, overrides

_CLASS = "vllm.v1.core.kv_cache_manager:KVCacheManager"


@changes(f"{_CLASS}.__init__", COORDINATOR)
def wrap_init(self: KVCacheManager, *args, original: Callable, **kwargs) -> None:
    """With this project's coordinator a manager becomes a CachingKVCacheManager, whoever builds it.

    A manager without a scheduler may be told the alignment, as later releases take it themselves.
    """
    facts = {}
    if "scheduler_block_size" not in inspect.signature(original).parameters:
        alignment = kwargs.pop("scheduler_block_size", None)
        facts = {} if alignment is None else {"block_size": alignment}
    with building_scheduler(**facts):
        original(self, *args, **kwargs)
    if isinstance(self.coordinator, AscendHybridKVCacheCoordinator):
        self.__class__ = put_over(self.__class__, CachingKVCacheManager)


def take_kv_cache_block_copies(self: KVCacheManager) -> None:
    """Return no copies: vLLM's own managers make none."""


_COPIES = f"{_CLASS}.take_kv_cache_block_copies"

PATCHES: tuple[Patch, ...] = (
    wrap_init,
    *(o for o in overrides(CachingKVCacheManager, _CLASS, COORDINATOR) if o.target != _COPIES),
    Add(
        target=_COPIES,
        replacement=take_kv_cache_block_copies,
        **{**PARTIAL_HITS, "superseded_by": _COPIES},
        why="A scheduler takes the copies from any manager; CachingKVCacheManager has some.",
    ),
)
