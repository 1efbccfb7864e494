# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/kv_cache_manager.py``: nothing is set; the methods that a class of ours overrides.

``patch_scheduler.py`` puts that class over the manager of a scheduler.
"""

from __future__ import annotations

from vllm_ascend.core.kv_cache_manager import CachingKVCacheManager
from vllm_ascend.patch.features import COORDINATOR
from vllm_ascend.patch.table import Patch, overrides

_CLASS = "vllm.v1.core.kv_cache_manager:KVCacheManager"

PATCHES: tuple[Patch, ...] = overrides(CachingKVCacheManager, _CLASS, COORDINATOR)
