# SPDX-License-Identifier: Apache-2.0
"""At which cached tails more than one request went on."""

from __future__ import annotations

from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId

from vllm_ascend.core.layout.units import BlockId
from vllm_ascend.core.retention.request_record import Tail


class TailUses:
    """Counts by a block that no other tail has. One that holds something else starts anew."""

    def __init__(self) -> None:
        # An entry per block of the pool at most: those of blocks given up are written over.
        self._uses: dict[BlockId, tuple[BlockHashWithGroupId, int]] = {}

    def note(self, tail: Tail) -> None:
        """A request goes on behind a tail that was cached."""
        self._add(tail, 1)

    def note_shared(self, tail: Tail) -> None:
        """A tail is cached where a request leaves the prompt of another."""
        self._add(tail, 2)

    def is_shared(self, tail: Tail) -> bool:
        """Whether several requests went on there, each in its own way perhaps."""
        return self._count(tail) > 1

    def _add(self, tail: Tail, count: int) -> None:
        if tail.blocks:
            block, key, *_ = tail.blocks[0]
            self._uses[block.block_id] = key, self._count(tail) + count

    def _count(self, tail: Tail) -> int:
        if not tail.blocks:
            return 0
        block, key, *_ = tail.blocks[0]
        known, count = self._uses.get(block.block_id, (key, 0))
        return count if known == key else 0
