# SPDX-License-Identifier: Apache-2.0
"""Requests for tests that need no scheduler."""

from collections.abc import Callable

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.request import Request

init_none_hash(sha256)


def make_request(request_id: str, token_ids: list[int], block_hasher: Callable) -> Request:
    """Return a request that has computed nothing yet."""
    return Request(
        request_id=request_id,
        prompt_token_ids=token_ids,
        sampling_params=SamplingParams(max_tokens=64),
        pooling_params=None,
        block_hasher=block_hasher,
    )
