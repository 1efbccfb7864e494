# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/kv_cache_manager.py``: alignment in, whose look-up it is, block copies out."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.plan.scheduler_facts import building_scheduler
from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.patch.features import COORDINATOR, PARTIAL_HITS, RETENTION
from vllm_ascend.patch.table import Add, Patch, changes

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
    """The coordinator must know the scheduler's alignment."""
    facts = {} if scheduler_block_size is None else {"block_size": scheduler_block_size}
    with building_scheduler(**facts):
        original(self, *args, **kwargs)


@changes(f"{_CLASS}.get_computed_blocks", COORDINATOR)
def wrap_get_computed_blocks(
    self: KVCacheManager, request: Request, *, original: Callable
) -> tuple:
    """A request must remember where it leaves a cached prefix."""
    coordinator = self.coordinator
    if not isinstance(coordinator, AscendHybridKVCacheCoordinator):
        return original(self, request)
    with coordinator.looking_up(request):
        return original(self, request)


def take_kv_cache_block_copies(self: KVCacheManager) -> list[KVCacheBlockCopy] | None:
    """Return the copies that the step just scheduled must make first; ``None`` if none.

    Each is returned once. Their sources stay referenced until the next step is scheduled; with a
    KV connector until the step's output is back.
    """
    coordinator = self.coordinator
    if isinstance(coordinator, AscendHybridKVCacheCoordinator):
        return coordinator.take_block_copies()
    return None


# Declared twice: some releases have the method, and then it is changed.
_COPIES = {
    **PARTIAL_HITS,
    "superseded_by": f"{_CLASS}.take_kv_cache_block_copies",
    "remove_when": "vLLM's managers copy what hits of any group end inside",
}


@changes(f"{_CLASS}.take_kv_cache_block_copies", _COPIES)
def wrap_take_kv_cache_block_copies(
    self: KVCacheManager, *, original: Callable
) -> tuple[list[KVCacheBlockCopy], list[KVCacheBlock]]:
    """Adds the copies of hits inside a block to vLLM's own."""
    if isinstance(self.coordinator, AscendHybridKVCacheCoordinator):
        return take_kv_cache_block_copies(self) or [], []
    return original(self)


PATCHES: tuple[Patch, ...] = (
    wrap_init,
    wrap_get_computed_blocks,
    Add(
        target=f"{_CLASS}.take_kv_cache_block_copies",
        replacement=take_kv_cache_block_copies,
        **_COPIES,
        why="A hit inside a block needs a private copy before the step.",
    ),
    wrap_take_kv_cache_block_copies,
)
