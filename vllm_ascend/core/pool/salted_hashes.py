# SPDX-License-Identifier: Apache-2.0
"""Hashes of salted prompts that cannot be taken for an adapter's.

vLLM writes the name of a LoRA adapter and a cache salt into a prompt's first hash as bare strings:
a salt that is spelled like an adapter's name names the adapter's first block. Where caching is
changed at all, the adapter's place is left empty beside a salt; elsewhere hashes stay vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.request import Request

Hasher = Callable[[Request], list[BlockHash]]
ExtraKeys = tuple[Any, ...] | None

# True while such a hash is computed. KV events ask for the same keys, and tell vLLM's.
_IS_HASHING: ContextVar[bool] = ContextVar("is_hashing_a_salt", default=False)

# vLLM makes an engine's hasher right behind its scheduler, and tells it nothing of that.
_tells_apart = False


def tell_apart_from_now_on(tells_apart: bool) -> None:
    """Set whether hashers made from now on tell salts from adapters.

    They do if the scheduler just built changes what is cached.
    """
    global _tells_apart
    _tells_apart = tells_apart


def hasher_in_force(hasher: Hasher) -> Hasher:
    """Return a hasher of vLLM's itself, or one around it that tells salts from adapters."""
    if not _tells_apart:
        return hasher

    def hash_request(request: Request) -> list[BlockHash]:
        # Called for every token; only a salted prompt's first hash differs.
        if request.block_hashes or not request.cache_salt or request.lora_request:
            return hasher(request)
        token = _IS_HASHING.set(True)
        try:
            return hasher(request)
        finally:
            _IS_HASHING.reset(token)

    return hash_request


def with_adapters_place(keys: ExtraKeys, start_token: int) -> ExtraKeys:
    """Return what is hashed with a block that starts at a token, given vLLM's keys."""
    if start_token or keys is None or not _IS_HASHING.get():
        return keys
    return (None, *keys)
