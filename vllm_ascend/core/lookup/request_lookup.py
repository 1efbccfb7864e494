# SPDX-License-Identifier: Apache-2.0
"""A look-up on behalf of a request: how far it may go, and what a KV connector would bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.request import Request

from vllm_ascend.core.cache_plan import CachePlan
from vllm_ascend.core.connectors.connector_rules import ConnectorQuery, look_up_limit
from vllm_ascend.core.layout.specs import is_compressed
from vllm_ascend.core.lookup.hit_search import Hit, HitSearch


class RequestLookup:
    """Looks up for the request that is named, as vLLM hands on its hashes only.

    Attributes:
        request: Whose hashes are looked up; ``None`` outside of :meth:`on_behalf_of`.
    """

    def __init__(self, plan: CachePlan, search: HitSearch) -> None:
        self.request: Request | None = None
        self._search = search
        self._has_connector = plan.facts.has_connector
        self._connector: ConnectorQuery | None = None
        self._shortens_prompts = any(map(is_compressed, plan.specs))

    @contextmanager
    def on_behalf_of(self, request: Request) -> Iterator[None]:
        """Say whose hashes are looked up inside."""
        self.request = request
        if self._connector is not None:
            self._connector.forget()
        try:
            yield
        finally:
            self.request = None

    def ask_connector(self, query: ConnectorQuery) -> None:
        """Ask before a hit ends inside a block; without it none does where there is a connector."""
        self._connector = query

    def find(self, block_hashes: list[BlockHash], limit: int) -> Hit:
        """Return the longest hit of at most ``limit`` tokens."""
        request = self.request
        # Prompts are shortened for models with compressed rows (vllm-ascend's connectors).
        if request is not None and self._shortens_prompts:
            limit = min(limit, look_up_limit(request.num_tokens, request.kv_transfer_params))
        return self._search.find(block_hashes, limit, self._external_tokens_follow())

    def _external_tokens_follow(self) -> Callable[[int], bool] | None:
        connector, request = self._connector, self.request
        if connector is None or request is None:
            # Nobody to be asked: it may.
            return (lambda _: True) if self._has_connector else None
        return lambda num_local_tokens: connector.brings_tokens(request, num_local_tokens)
