# SPDX-License-Identifier: Apache-2.0
"""Remembers the granule behind a cached block, on which rows of draft layers depend.

An EAGLE or MTP layer computes its row at position p from the token at p + 1. The last row of a
block therefore depends on the token *behind* it, which the block's key does not name. vLLM answers
by giving the last block of a hit up; here a block remembers the hash of the granule that followed
when it was written, and serves only requests that go on with the same tokens. A block that ends
inside a granule needs no such memory: the granule's hash in its name covers the token behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from vllm.v1.core.kv_cache_utils import BlockHash, BlockHashWithGroupId, KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.events.kv_event_log import KVEventLog
from vllm_ascend.core.policy.units import BlockId, GroupId

_Pending = tuple[int, KVCacheBlock, BlockHashWithGroupId | None, int]


class SuccessorHashes:
    """Block id -> hash of the granule behind the block, as of the block's current content.

    Entries of evicted blocks need no cleaning: a block is only asked about while it is cached,
    and caching it anew overwrites the entry.
    """

    def __init__(self, hash_tokens: int, event_log: KVEventLog | None = None) -> None:
        self._hash_tokens = hash_tokens
        self._event_log = event_log
        self._by_block: dict[BlockId, BlockHash] = {}
        # Blocks cached before the granule behind them was known, with their keys, by request.
        self._pending: defaultdict[str, list[_Pending]] = defaultdict(list)

    def remember(
        self, group_id: GroupId, request: Request, block: KVCacheBlock, end_tokens: int
    ) -> None:
        """Note what follows ``block``, whose content is the request's, ending at ``end_tokens``.

        If the request has not got that far, it is noted by a later ``resolve_pending``.
        """
        log = self._event_log
        index, inside = divmod(end_tokens, self._hash_tokens)
        if inside:
            return
        if index < len(request.block_hashes):
            self._by_block[block.block_id] = request.block_hashes[index]
            if log is not None:
                log.successor_known(group_id, request, block.block_id, end_tokens)
        else:
            self._by_block.pop(block.block_id, None)
            if log is not None:
                log.successor_unknown(block.block_id)
            self._pending[request.request_id].append(
                (group_id, block, block.block_hash, end_tokens)
            )

    def resolve_pending(self, group_id: GroupId, request: Request) -> None:
        """Note the successors of the group's blocks that the request has meanwhile reached."""
        for entry in self._pending.pop(request.request_id, ()):
            its_group, block, key, end_tokens = entry
            if its_group != group_id:
                self._pending[request.request_id].append(entry)
            elif block.block_hash == key:  # else its window moved on and it was reused
                self.remember(group_id, request, block, end_tokens)

    def drop_from(self, request_id: str, num_tokens: int) -> None:
        """Forget what is pending behind a request's first ``num_tokens`` tokens.

        The token that followed was dropped since: the blocks' last rows were computed from it.
        """
        kept = [entry for entry in self._pending.pop(request_id, ()) if entry[3] < num_tokens]
        if kept:
            self._pending[request_id] = kept

    def forget(self, request_id: str) -> None:
        """Drop what is pending for a request that ends or is preempted."""
        self._pending.pop(request_id, None)

    def pick(
        self, copies: Sequence[KVCacheBlock], block_hashes: list[BlockHash], end_tokens: int
    ) -> KVCacheBlock | None:
        """Return the copy whose successor is what the request has behind ``end_tokens``.

        ``None`` if the request does not reach that far, or no copy was followed by the same tokens.
        """
        index, inside = divmod(end_tokens, self._hash_tokens)
        if inside:
            return copies[0] if copies else None
        if index >= len(block_hashes):
            return None
        wanted = block_hashes[index]
        for block in copies:
            if self._by_block.get(block.block_id) == wanted:
                return block
        return None
