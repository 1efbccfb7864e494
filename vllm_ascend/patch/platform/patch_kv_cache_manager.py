# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/kv_cache_manager.py``: passes the scheduler's alignment on."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.core.kv_cache_manager import KVCacheManager

from vllm_ascend.core.kv_cache_coordinator import coordinators_told
from vllm_ascend.patch.features import RETENTION
from vllm_ascend.patch.table import Patch, Wrap

_TARGET = "vllm.v1.core.kv_cache_manager:KVCacheManager.__init__"


def wrap_init(original: Callable) -> Callable:
    def __init__(
        self: KVCacheManager, *args, scheduler_block_size: int | None = None, **kwargs
    ) -> None:
        facts = {} if scheduler_block_size is None else {"block_size": scheduler_block_size}
        with coordinators_told(**facts):
            original(self, *args, **kwargs)

    return __init__


PATCHES: tuple[Patch, ...] = (
    Wrap(
        target=_TARGET,
        replacement=wrap_init,
        upstream_sha256="bf8b98366d9722c8",
        aliases=(),
        **RETENTION,
        why="The coordinator must know the alignment that the scheduler works with.",
        skip_if_present=f"{_TARGET}(scheduler_block_size)",
    ),
)
