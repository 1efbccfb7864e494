# SPDX-License-Identifier: Apache-2.0
"""Rules about whole blocks, checked against the scheduler's own block pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ascend_evaluation.oracle.errors import ContentViolation
from vllm_ascend_evaluation.oracle.groups import Kind

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

NULL_BLOCK_ID = 0


class BlockGuard:
    """Compares what the worker is told with what the block pool believes at that moment.

    Only valid while the pool is as `schedule()` left it, so a step has to be executed before
    anything else touches the scheduler.
    """

    def __init__(self, kv_cache_manager: KVCacheManager) -> None:
        self._coordinator = kv_cache_manager.coordinator
        self._blocks = kv_cache_manager.block_pool.blocks
        # Under which key a block was completed, and with which content.
        self._content_of_key: dict[bytes, int] = {}
        self._given: set[int] = set()
        self._newcomers: set[str] = set()

    def start_step(self, newcomers: set[str]) -> None:
        """Begin a step.

        Args:
            newcomers: ids of requests that this step admits or resumes; only they can share
                blocks that others are given, and write, in the same step.
        """
        self._given.clear()
        self._newcomers = newcomers

    def is_hashed(self, block_id: int) -> bool:
        """Whether the block can be found under a key."""
        return self._blocks[block_id].block_hash is not None

    def is_hashed_to(self, block_id: int, num_tokens: int) -> bool:
        """Whether its key stands for so many tokens of a prompt, or more.

        vLLM 0.30.0 also enters a block under what it holds so far.
        """
        covered = getattr(self._blocks[block_id], "block_hash_num_tokens", None)
        return self.is_hashed(block_id) and (covered is None or covered >= num_tokens)

    def check_given(self, block_id: int, group_id: int, kind: Kind, request_id: str) -> None:
        """A block said to be fresh is used by nobody else.

        Raises:
            ContentViolation: it is free, was given to two requests, or another one uses it.
        """
        block = self._blocks[block_id]
        problem = None
        if block.ref_cnt < 1:
            problem = "was given a block that the pool counts as free"
        elif block_id in self._given:
            problem = "was given a block that another request was given in the same step"
        elif block.ref_cnt > 1:
            users = self._users(block_id) - self._newcomers - {request_id}
            if users:
                problem = f"was given a block that {', '.join(sorted(users))} is using"
        self._given.add(block_id)
        if problem:
            raise ContentViolation(
                problem,
                request_id=request_id,
                group_id=group_id,
                kind=kind.value,
                block_id=block_id,
                found=f"ref_cnt {block.ref_cnt}",
            )

    def check_writable(self, block_id: int) -> str | None:
        """What forbids writing to a block, or None."""
        if block_id == NULL_BLOCK_ID:
            return "writes into the null block"
        block = self._blocks[block_id]
        if block.ref_cnt < 1:
            return "writes into a block that the pool counts as free"
        if block.ref_cnt > 1 and block.block_hash is None:
            # Its pages may also be about to be copied, which comes before anything is written.
            users = self._users(block_id)
            if len(users) > 1:
                return f"writes into a block that {len(users)} tables hold and that has no key"
        return None

    def completed(self, block_id: int, digest: int) -> int | None:
        """Note the content of a block whose last row was just written.

        Returns:
            The digest of another content known under the same key, if there is one.
        """
        key = self._blocks[block_id].block_hash
        if key is None:
            return None
        known = self._content_of_key.setdefault(bytes(key), digest)
        if len(self._content_of_key) > 4 * len(self._blocks) + 1024:
            self._forget_evicted()
        return None if known == digest else known

    def _users(self, block_id: int) -> set[str]:
        """Requests whose tables hold a block. Expensive."""
        block = self._blocks[block_id]
        return {
            request_id
            for manager in self._coordinator.single_type_managers
            for request_id, blocks in manager.req_to_blocks.items()
            if any(held is block for held in blocks)
        }

    def _forget_evicted(self) -> None:
        keys = {bytes(block.block_hash) for block in self._blocks if block.block_hash is not None}
        self._content_of_key = {
            key: digest for key, digest in self._content_of_key.items() if key in keys
        }
