# SPDX-License-Identifier: Apache-2.0
"""What the model reads at a prompt's positions: token ids, pieces of an image, or embeddings.

Two requests may share a row only if all of it is equal up to there, whatever their token ids are:
the placeholders of two images have the same ids, and a prompt of embeddings has none.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from vllm_ascend_evaluation.oracle.digests import PrefixDigests, mix

if TYPE_CHECKING:
    import torch
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.sched.output import NewRequestData
    from vllm.v1.request import Request

# Contents are int64; ids of tokens are far below all others.
_NO_TOKEN = 1 << 61


def image_contents(identifier: str, length: int) -> list[int]:
    """The contents of a multimodal item's positions, one each."""
    item = crc32(identifier.encode()) << 24
    return [_NO_TOKEN + (mix(item + index) >> 4) for index in range(length)]


def embedding_contents(prompt_embeds: torch.Tensor) -> list[int]:
    """The contents of a prompt's embeddings.

    Args:
        prompt_embeds: shape (tokens, hidden size).
    """
    rows = prompt_embeds.contiguous().numpy()
    return [_NO_TOKEN + (mix(crc32(row.tobytes()) + (1 << 40)) >> 4) for row in rows]


def contents_key(cache_salt: str | None, lora_request: LoRARequest | None) -> Hashable:
    """What separates the contents of requests at every position."""
    return cache_salt, lora_request.lora_name if lora_request else None


def digests_of(
    request: NewRequestData | Request,
    *,
    cache_salt: str | None,
    output_token_ids: Sequence[int] = (),
) -> PrefixDigests:
    """The digests of a request's prompt and of what was sampled behind it."""
    digests = PrefixDigests(contents_key(cache_salt, request.lora_request), ())
    embeds = request.prompt_embeds
    if embeds is not None:
        # The scheduler counts a zero for every one of them.
        tokens = request.prompt_token_ids or [0] * len(embeds)
        digests.extend(tokens, embedding_contents(embeds))
    else:
        tokens = request.prompt_token_ids or []
        contents = None
        if request.mm_features:
            contents = list(tokens)
            for feature in request.mm_features:
                start, length = feature.mm_position.offset, feature.mm_position.length
                contents[start : start + length] = image_contents(feature.identifier, length)
        digests.extend(tokens, contents)
    digests.extend(output_token_ids)
    return digests
