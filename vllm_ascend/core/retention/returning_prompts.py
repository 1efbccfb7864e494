# SPDX-License-Identifier: Apache-2.0
"""Tells prompts that return from new ones; ``policy/protection`` says why that matters."""

from __future__ import annotations

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId
from vllm.v1.request import Request

from vllm_ascend.core.layout.block_names import BlockNames
from vllm_ascend.core.policy.protection import is_returning
from vllm_ascend.core.pool.given_up_names import GivenUpNames

REMEMBERED_NAMES = 2  # per block of the pool


class ReturningPrompts:
    """Recognises prompts by the names of the blocks of one group that keeps all its rows.

    A name counts if its block is cached, or was cached until recently.
    """

    def __init__(self, pool: BlockPool, suffix: bytes, *, block_tokens: int) -> None:
        """Look up in ``pool`` what is cached; the group's keys end in ``suffix``."""
        self._pool, self._suffix, self._block_tokens = pool, suffix, block_tokens
        self.given_up = GivenUpNames(suffix, REMEMBERED_NAMES * pool.num_gpu_blocks)

    def includes(self, request: Request, num_matched_tokens: int) -> bool:
        """Whether a prompt returns, whose first ``num_matched_tokens`` are cached as rows."""
        prompt = request.num_prompt_tokens
        if is_returning(num_matched_tokens, prompt):
            return True
        return is_returning(self._num_seen_tokens(request, num_matched_tokens), prompt)

    def _num_seen_tokens(self, request: Request, num_matched_tokens: int) -> int:
        """Return how many leading tokens are cached, or were until recently."""
        block_tokens = self._block_tokens
        names = BlockNames(request.block_hashes, self._pool.hash_block_size, block_tokens)
        find = self._pool.cached_block_hash_to_block.get_one_block
        end = min(request.num_prompt_tokens // block_tokens, len(names))
        for ordinal in range(num_matched_tokens // block_tokens, end):
            name = BlockHashWithGroupId(names[ordinal] + self._suffix)
            if name not in self.given_up and find(name) is None:
                return ordinal * block_tokens
        return end * block_tokens
