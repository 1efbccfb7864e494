# SPDX-License-Identifier: Apache-2.0
"""Which prompts have come before, and how much memory is theirs: a segmented LRU with a memory.

Most prompts never come again, and under LRU they push out those that do. So what a prompt leaves
behind outlives others if most of it has come before: it is cached, or it was until recently and its
names are still remembered. Whoever sends prompts that nobody repeats, however many, pushes out his
own. A bound keeps the other half of memory for what is new, least recently used first.

Sources of the idea: Karedla, Love and Wherry, "Caching Strategies to Improve Disk System
Performance", IEEE Computer 27(3), 1994 (segments); Johnson and Shasha, "2Q", VLDB 1994 (names that
outlive their content).
"""

from __future__ import annotations

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId
from vllm.v1.request import Request

from vllm_ascend.core.eviction.block_classes import is_returning
from vllm_ascend.core.pool.block_names import BlockNames

REMEMBERED_NAMES = 2  # per block of the pool


class GivenUpNames:
    """Names of one group's blocks that were cached until recently. The oldest are forgotten."""

    def __init__(self, suffix: bytes, capacity: int) -> None:
        """Remember up to ``capacity`` names; the group's keys end in ``suffix``."""
        self._suffix = suffix
        self._capacity = capacity
        self._names: dict[BlockHashWithGroupId, None] = {}

    def __contains__(self, name: BlockHashWithGroupId) -> bool:
        return name in self._names

    def add(self, name: BlockHashWithGroupId) -> None:
        """Remember a name, if it is one of the group."""
        if not name.endswith(self._suffix):
            return
        self._names.pop(name, None)
        self._names[name] = None
        if len(self._names) > self._capacity:
            del self._names[next(iter(self._names))]

    def clear(self) -> None:
        """Forget all of them."""
        self._names.clear()


class ReturningPrompts:
    """Tells prompts that have come before, by the names of one group that keeps all its rows."""

    def __init__(self, pool: BlockPool, suffix: bytes, *, block_tokens: int) -> None:
        """Look up in ``pool`` what is cached; the group's keys end in ``suffix``."""
        self._pool, self._suffix, self._block_tokens = pool, suffix, block_tokens
        self.given_up = GivenUpNames(suffix, REMEMBERED_NAMES * pool.num_gpu_blocks)

    def includes(self, request: Request, matched: int) -> bool:
        """Say whether a prompt has come before; ``matched`` tokens are cached in prefix groups."""
        prompt = request.num_prompt_tokens
        return is_returning(matched, prompt) or is_returning(self._seen(request, matched), prompt)

    def _seen(self, request: Request, matched: int) -> int:
        """Return how many leading tokens are cached, or were until recently."""
        block_tokens = self._block_tokens
        names = BlockNames(request.block_hashes, self._pool.hash_block_size, block_tokens)
        find = self._pool.cached_block_hash_to_block.get_one_block
        end = min(request.num_prompt_tokens // block_tokens, len(names))
        for ordinal in range(matched // block_tokens, end):
            name = BlockHashWithGroupId(names[ordinal] + self._suffix)
            if name not in self.given_up and find(name) is None:
                return ordinal * block_tokens
        return end * block_tokens
