# SPDX-License-Identifier: Apache-2.0
"""Granules that the step being scheduled completes: no copy may rest on them yet.

A copy is made before the forward pass of its step, so its source must have been written by an
earlier one. What a step completes is entered once the next one is scheduled.
"""

from __future__ import annotations

from collections import defaultdict

from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.events.kv_event_log import KVEventLog
from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.pool.granule_index import GranuleIndex
from vllm_ascend.core.retention.boundaries import align_down
from vllm_ascend.core.retention.request_record import RequestRecord


class UnwrittenGranules:
    """Request id -> granules that wait for their step to be dispatched."""

    def __init__(
        self,
        index: GranuleIndex,
        *,
        hash_tokens: int,
        alignment: int,
        event_log: KVEventLog | None = None,
    ) -> None:
        """Prepare.

        Args:
            index: Where they are entered.
            hash_tokens: Tokens per request hash.
            alignment: Hits are multiples of this, in tokens; rows exist up to such multiples.
            event_log: Told of granules at once: the next step's look-ups will find them.
        """
        self._index = index
        self._event_log = event_log
        self._hash_tokens = hash_tokens
        self._alignment = alignment
        self._waiting: defaultdict[str, list[tuple[int, KVCacheBlock, list[BlockHash]]]] = (
            defaultdict(list)
        )

    def collect(
        self, group: Group, record: RequestRecord, request: Request, num_tokens: int
    ) -> None:
        """Note the granules among a request's first ``num_tokens`` tokens not noted before.

        Args:
            num_tokens: Tokens that are final, and computed when the step has run.
        """
        per_block = group.block_tokens // self._hash_tokens
        first = record.granules.get(group.id, 0)
        end = align_down(num_tokens, self._alignment) // self._hash_tokens
        blocks = group.manager.req_to_blocks[request.request_id]
        if self._event_log is not None and first < end:
            granules = range(first, end)
            self._event_log.granules_stored(group.id, request, blocks, granules, per_block)
        while first < end:
            ordinal = first // per_block
            block_end = (ordinal + 1) * per_block
            # A hit at a block's end shares it: its last granule needs no entry.
            hashes = request.block_hashes[first : min(end, block_end - 1)]
            if hashes:
                self._waiting[request.request_id].append((group.id, blocks[ordinal], hashes))
            first = min(end, block_end)
        record.granules[group.id] = max(first, end)

    def enter_all(self) -> None:
        """Enter everything: the step has been dispatched."""
        for request_id in list(self._waiting):
            self.enter(request_id)

    def enter(self, request_id: str) -> None:
        """Enter what one request waits with, before its blocks are freed."""
        for group_id, block, granules in self._waiting.pop(request_id, ()):
            self._index.enter(group_id, block, granules)

    def forget(self, request_id: str) -> None:
        """Drop what one request waits with: its part of the step will not run."""
        for _, block, granules in self._waiting.pop(request_id, ()):
            if self._event_log is not None:
                self._event_log.granules_withdrawn(block.block_id, granules)
