# SPDX-License-Identifier: Apache-2.0
"""A bug to plant: a look-up that hashes a prompt's tokens, one by one.

It costs a multiple of the whole look-up, so that no machine's noise can hide it.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from vllm.v1.core.kv_cache_manager import KVCacheManager


def slowed(original: Callable) -> Callable:
    def get_computed_blocks(self: KVCacheManager, request):
        for token in request.prompt_token_ids:
            sha256(token.to_bytes(4, "little"))
        return original(self, request)

    return get_computed_blocks


KVCacheManager.get_computed_blocks = slowed(KVCacheManager.get_computed_blocks)
