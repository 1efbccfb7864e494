# SPDX-License-Identifier: Apache-2.0
"""A look-up made for a request: what the coordinator knows of it, and remembers of the outcome."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.connectors.connector_rules import ConnectorQuery, look_up_limit
from vllm_ascend.core.layout.specs import group_specs, is_compressed
from vllm_ascend.core.lookup.hybrid_lookup import HybridLookupCoordinator
from vllm_ascend.core.retention.boundaries import align_down
from vllm_ascend.core.retention.request_record import RequestRecord


class RequestLookupCoordinator(HybridLookupCoordinator):
    """Looks up on behalf of requests, and asks a KV connector what it would bring.

    For the arguments see the base class.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._records: dict[str, RequestRecord] = {}
        self._looking_up: RequestRecord | None = None
        self._request_looked_up: Request | None = None
        self._connector: ConnectorQuery | None = None
        self._compressed = [is_compressed(spec) for spec in group_specs(self.kv_cache_config)]
        self._lookahead = self.hash_block_size if self.eagle_group_ids else 0

    @contextmanager
    def looking_up(self, request: Request) -> Iterator[None]:
        """Say whose hashes are looked up inside."""
        self._request_looked_up = request
        if self._connector is not None:
            self._connector.forget()
        if self._changes_caching:
            self._looking_up = record = self._record(request.request_id)
            record.request = request
            # It may be let in behind another hit than the one before, which found no memory.
            record.next_free = 0
        try:
            yield
        finally:
            self._looking_up = self._request_looked_up = None

    def ask_connector(self, query: ConnectorQuery) -> None:
        """Ask before a hit ends inside a block; without it none does where there is a connector."""
        self._connector = query

    def find_longest_cache_hit(
        self, block_hashes: list[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the longest hit; see the base class."""
        request = self._request_looked_up
        # Prompts are shortened for models with compressed rows (vllm-ascend's connectors).
        if request is not None and any(self._compressed):
            limit = look_up_limit(request.num_tokens, request.kv_transfer_params)
            max_cache_hit_length = min(max_cache_hit_length, limit)
        return super().find_longest_cache_hit(block_hashes, max_cache_hit_length)

    def _external_tokens_follow(self, num_local_tokens: int) -> bool:
        request = self._request_looked_up
        if self._connector is None or request is None:
            return super()._external_tokens_follow(num_local_tokens)
        return self._connector.brings_tokens(request, num_local_tokens)

    def _record(self, request_id: str) -> RequestRecord:
        record = self._records.get(request_id)
        if record is None:
            record = self._records[request_id] = RequestRecord()
        return record

    def _note_look_up(self, matched: int, resumable: int, hit: int) -> None:
        """Remember where the request leaves what is cached; its tail there is worth keeping."""
        record = self._looking_up
        if record is None:
            return
        record.hit = hit
        record.matched = matched
        if self._downward_closed:
            junction = max(matched - self._lookahead, 0)
            record.junction = align_down(junction, self.lcm_block_size)
            record.missed_junction = record.junction > resumable
