# SPDX-License-Identifier: Apache-2.0
"""A bug to plant: a look-up that walks a prompt's tokens."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.core.kv_cache_manager import KVCacheManager


def slowed(original: Callable) -> Callable:
    def get_computed_blocks(self: KVCacheManager, request):
        for _ in request.prompt_token_ids:
            pass
        return original(self, request)

    return get_computed_blocks


KVCacheManager.get_computed_blocks = slowed(KVCacheManager.get_computed_blocks)
