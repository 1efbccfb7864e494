# SPDX-License-Identifier: Apache-2.0
"""Takes the place of vllm-ascend's module of this name: the coordinator, under the same names."""

from vllm_ascend.patch.engine.patch_kv_cache_coordinator import (
    AscendHybridKVCacheCoordinator,
    get_kv_cache_coordinator,
)
from vllm_ascend.patch.table import Patch

PATCHES: tuple[Patch, ...] = ()

__all__ = ["AscendHybridKVCacheCoordinator", "get_kv_cache_coordinator"]
