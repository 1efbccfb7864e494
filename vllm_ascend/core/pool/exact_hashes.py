# SPDX-License-Identifier: Apache-2.0
"""Hashes that differ wherever rows do.

vLLM's own leave three things out:

- It writes the name of a LoRA adapter and a cache salt into a prompt's first hash as bare strings:
  a salt that is spelled like an adapter's name names the adapter's first block. Here the adapter's
  place is left empty beside a salt. Later releases hash each with its kind.
- Whatever is hashed later goes on from the last image. If the answer, or a session's next chunk,
  completes a granule with several images, all but the last are left out (vllm-project/vllm#51694).
- Where a prompt mixes tokens and embeddings, the hash does not say which is which
  (vllm-project/vllm#56655).

They are put in where caching is changed at all; elsewhere hashes stay vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.request import Request

Hasher = Callable[[Request], list[BlockHash]]
ExtraKeys = tuple[Any, ...] | None

# Whether vLLM hashes keys with their kinds, and goes on from the right image.
KINDS_ARE_HASHED = hasattr(kv_cache_utils, "to_event_extra_keys")

# True while such a hash is computed. KV events ask for the same keys, and tell vLLM's.
_IS_HASHING: ContextVar[bool] = ContextVar("is_hashing", default=False)

# vLLM makes an engine's hasher right behind its scheduler, and tells it nothing of that.
_tells_apart = False


def tell_apart_from_now_on(tells_apart: bool) -> None:
    """Set whether hashers made from now on tell apart what vLLM's do not.

    They do if the scheduler just built changes what is cached.
    """
    global _tells_apart
    _tells_apart = tells_apart


def hasher_in_force(hasher: Hasher) -> Hasher:
    """Return a hasher of vLLM's itself, or one around it that tells more prompts apart."""
    if not _tells_apart:
        return hasher

    def hash_request(request: Request) -> list[BlockHash]:
        # Called for every token, and mostly of prompts that are tokens and nothing else.
        is_salted = not request.block_hashes and _has_bare_salt(request)
        if not (is_salted or request.mm_features or _mask(request)):
            return hasher(request)
        token = _IS_HASHING.set(True)
        try:
            return hasher(request)
        finally:
            _IS_HASHING.reset(token)

    return hash_request


def extra_keys(
    request: Request, start_token: int, end_token: int, mm_idx: int, vllms: Callable
) -> tuple[ExtraKeys, int]:
    """Return what is hashed with the tokens of a granule, and the image to go on from.

    Args:
        request: Whose tokens they are.
        start_token: The granule's first.
        end_token: The first one behind it.
        mm_idx: The first image that may reach into it; -1 is vLLM's word for the last one.
        vllms: vLLM's own function, which takes these and returns its keys.
    """
    if not _IS_HASHING.get():
        return vllms(request, start_token, end_token, mm_idx)
    keys, mm_idx = vllms(request, start_token, end_token, max(mm_idx, 0))
    if start_token == 0 and _has_bare_salt(request):
        keys = (None, *keys)
    mask = _mask(request)[start_token:end_token]
    return ((*(keys or ()), bytes(mask)) if mask else keys), mm_idx


def _has_bare_salt(request: Request) -> bool:
    """Whether a salt stands where an adapter's name might."""
    return bool(not KINDS_ARE_HASHED and request.cache_salt and not request.lora_request)


def _mask(request: Request) -> list[bool]:
    """Return which positions of a prompt are tokens, if others are embeddings; 0.20.2 has none."""
    return getattr(request, "prompt_is_token_ids", None) or []
