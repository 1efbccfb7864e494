# SPDX-License-Identifier: Apache-2.0
"""What a prefix is called between ranks and front ends: one 64-bit number per granule.

vLLM's own block hashes will not do. Each rank seeds them at random unless ``PYTHONHASHSEED`` is
set, and they cost four times as much. A name chains like a hash: it stands for a granule and for
everything before it. Names decide where a request is sent, never what is reused, so a collision
costs a hit and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.request import Request

ROOT = 0
"""The name in front of a prompt's first granule."""


def extend_names(
    names: list[int],
    token_ids: Sequence[int],
    hash_tokens: int,
    end: int,
    extra_key: Callable[[int], int | None] | None = None,
) -> None:
    """Append the names of further granules of one prompt.

    Args:
        names: The names of the prompt's first granules, perhaps none; extended in place.
        token_ids: The prompt. It can be sliced.
        hash_tokens: Tokens per granule.
        end: The granules that are to have names afterwards.
        extra_key: What tells a granule, by ordinal, apart besides its tokens.
    """
    name = names[-1] if names else ROOT
    for granule in range(len(names), end):
        start = granule * hash_tokens
        tokens = token_ids[start : start + hash_tokens]
        key = None if extra_key is None else extra_key(granule)
        # Python hashes tuples of numbers in C, and alike in every process.
        name = hash((name, *tokens)) if key is None else hash((name, key, *tokens))
        names.append(name)


def placed_name(name: int, place: int) -> int:
    """Return the name of a unit inside a granule.

    Args:
        name: The granule's.
        place: Which end of a unit inside the granule it is, from 1.
    """
    return hash((name, place))


def names_check(hash_tokens: int) -> int:
    """Return a number that two processes share only if they name prompts alike."""
    names: list[int] = []
    extend_names(names, range(2 * hash_tokens), hash_tokens, 2)
    return placed_name(names[-1], 1)


def extra_key_of(
    request: Request | EngineCoreRequest, hash_tokens: int
) -> Callable[[int], int | None] | None:
    """Return what tells a request's granules apart besides tokens; ``None``: nothing does.

    Adapter, salt and images count as they do in vLLM's hashes.
    """
    covers_more = request.mm_features or request.lora_request or request.cache_salt
    if not covers_more and request.prompt_embeds is None:
        return None

    def extra_key(granule: int) -> int | None:
        start = granule * hash_tokens
        keys, _ = generate_block_hash_extra_keys(request, start, start + hash_tokens, 0)
        if not keys:
            return None
        return int.from_bytes(blake2b(repr(keys).encode(), digest_size=8).digest(), "big")

    return extra_key


def prompt_names(request: EngineCoreRequest, hash_tokens: int) -> list[int]:
    """Return the names of all whole granules of a request that is about to be sent.

    A prompt given as embeddings has none: nothing of it is found in any cache.
    """
    names: list[int] = []
    tokens = request.prompt_token_ids
    if tokens is not None and request.prompt_embeds is None:
        end = len(tokens) // hash_tokens
        extend_names(names, tokens, hash_tokens, end, extra_key_of(request, hash_tokens))
    return names
