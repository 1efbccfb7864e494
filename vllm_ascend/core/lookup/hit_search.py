# SPDX-License-Identifier: Apache-2.0
"""Where a hit may end, and which blocks it hands out.

The longest match of the downward-closed groups (full and compressed attention) is found once; then
boundaries are walked downwards to the first one at which every other group holds its tail. Each
group's blocks are cut to that boundary, so no request is ever handed a block behind its hit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.connectors.connector_rules import ConnectorQuery, look_up_limit
from vllm_ascend.core.layout.groups import Group, Groups
from vllm_ascend.core.layout.specs import is_compressed
from vllm_ascend.core.lookup.prefix_lookup import CacheView, PrefixLookup
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.policy.boundaries import align_down
from vllm_ascend.core.policy.units import GroupId

Ends = dict[GroupId, list[KVCacheBlock]]
"""Group id -> what lies at the end of a hit: a tail, or the block to be copied."""


class Hit(NamedTuple):
    """The result of a look-up. All numbers are tokens, and ``tokens <= resumable <= matched``.

    Attributes:
        blocks: By group, the blocks of ``[0, tokens)`` with null blocks where a window has moved
            on. Where the hit ends inside a block, that block is the group's last one; it is to be
            copied, not shared. Where a connector brings the tail, windowed groups have no blocks.
            Nothing is referenced yet.
        tokens: The hit.
        resumable: The largest boundary at which every group can resume.
        matched: How far the rows of full and compressed groups are cached.
    """

    blocks: tuple[list[KVCacheBlock], ...]
    tokens: int
    resumable: int
    matched: int


class HitSearch:
    """Finds hits over any number of groups of any block sizes, compressed ones included."""

    def __init__(self, plan: CachePlan, groups: Groups, view: CacheView) -> None:
        self._plan, self._groups, self._view = plan, groups, view
        # Its tails always have a last block, which is named by the boundary's hash.
        self._probe: Group | None = None
        self._finest_block = min((g.block_tokens for g in groups.prefix), default=1)
        if not plan.is_stock:
            self._probe = next((g for g in groups.windowed if g.tail(plan.alignment)), None)

    def find(
        self,
        block_hashes: list[BlockHash],
        limit: int,
        external_tokens_follow: Callable[[int, int], bool] | None,
        *,
        tail_follows: bool = False,
    ) -> Hit:
        """Return the longest hit of at most ``limit`` tokens.

        ``external_tokens_follow(whole, partial)`` says whether tokens that a connector brings, or
        may, behind ``whole`` local ones are worth more than the ``partial`` ones that are here; it
        is asked once at most.
        Behind a hit that ends inside a block it brings none. ``None``: there is no connector.
        With ``tail_follows`` it brings a tail as well, so that a hit of rows needs none.
        """
        plan, look_up = self._plan, PrefixLookup(self._view, block_hashes)
        prefixes: dict[GroupId, list[KVCacheBlock]] = {}
        for group in self._groups.prefix:
            prefixes[group.id], limit = look_up.longest_prefix(group, limit)
        resumable, ends = self._walk(look_up, limit, plan.alignment)
        boundary = resumable
        if tail_follows and external_tokens_follow and plan.ends_inside_blocks:
            rows = align_down(limit, self._finest_block)
            partial = resumable if resumable % plan.whole_block_tokens else 0
            if rows:
                if external_tokens_follow(rows, partial):
                    return Hit(self._rows(rows, prefixes), rows, resumable, limit)
                external_tokens_follow = None  # asked once: it brings nothing that is worth more
        ends_inside = plan.ends_inside_blocks and boundary % plan.whole_block_tokens
        if ends_inside and external_tokens_follow:
            whole, whole_ends = self._walk(look_up, boundary, plan.whole_block_tokens)
            if external_tokens_follow(whole, boundary):
                boundary, ends = whole, whole_ends
        if not boundary:
            return Hit(tuple([] for _ in self._groups.all), 0, resumable, limit)
        return Hit(self._blocks(boundary, prefixes, ends), boundary, resumable, limit)

    def cached_tail(
        self, block_hashes: Sequence[BlockHash], boundary: int
    ) -> dict[int, dict[int, int]] | None:
        """Return a boundary's tail as it is cached now: group -> ordinal -> block id.

        ``None``: not all of it is. The blocks are only safe until the next allocation.
        """
        look_up = PrefixLookup(self._view, list(block_hashes))
        tail: dict[int, dict[int, int]] = {}
        for group in self._groups.windowed:
            blocks, end = look_up.tail(group, boundary)
            if end < boundary:
                return None
            ids = [block.block_id for block in blocks]
            tail[group.id] = dict(zip(group.tail(boundary), ids, strict=True))
        return tail

    def _rows(
        self, num_tokens: int, prefixes: dict[GroupId, list[KVCacheBlock]]
    ) -> tuple[list[KVCacheBlock], ...]:
        """Return the whole blocks of ``[0, num_tokens)`` with rows that stay; no windows."""
        return tuple(
            prefixes.get(group.id, [])[: num_tokens // group.block_tokens]
            for group in self._groups.all
        )

    def _walk(self, look_up: PrefixLookup, limit: int, step: int) -> tuple[int, Ends]:
        """Return the largest multiple of ``step`` up to ``limit`` at which all groups can resume.

        It is 0 if there is none. With it comes what lies at its end.
        """
        boundary = align_down(limit, step)
        while boundary > 0:
            if self._probe is not None:
                boundary = align_down(look_up.last_tail_end(self._probe, boundary), step)
                if not boundary:
                    break
            ends, bound = self._ends_at(look_up, boundary)
            if bound == boundary:
                return boundary, ends
            boundary = align_down(bound, step)
        return 0, {}

    def _ends_at(self, look_up: PrefixLookup, boundary: int) -> tuple[Ends, int]:
        """Return what every group has at the end of a hit, and the boundary; or a smaller bound."""
        ends: Ends = {}
        for group in self._groups.windowed:
            ends[group.id], bound = look_up.tail(group, boundary)
            if bound < boundary:
                return {}, bound
        for group in self._groups.prefix:
            if group.ends_inside and boundary % group.block_tokens:
                source, bound = look_up.source(group, boundary)
                if source is None:
                    return {}, bound
                ends[group.id] = [source]
        return ends, boundary

    def _blocks(
        self, boundary: int, prefixes: dict[GroupId, list[KVCacheBlock]], ends: Ends
    ) -> tuple[list[KVCacheBlock], ...]:
        """Return every group's blocks of ``[0, boundary)``, cut to exactly that."""
        null_block = self._view.pool.null_block

        def blocks_of(group: Group) -> list[KVCacheBlock]:
            num_blocks = boundary // group.block_tokens
            end = ends.get(group.id, [])
            if group.is_downward_closed:
                return prefixes[group.id][:num_blocks] + end
            blocks = [null_block] * num_blocks
            blocks[num_blocks - len(end) :] = end
            return blocks

        return tuple(map(blocks_of, self._groups.all))


class RequestLookup:
    """Looks up for the request that is named, as vLLM hands on its hashes only.

    Attributes:
        request: Whose hashes are looked up; ``None`` outside of :meth:`on_behalf_of`.
        connector: Who is asked before a hit ends inside a block. Where there is a connector and
            nobody is asked, none does.
    """

    def __init__(self, plan: CachePlan, search: HitSearch) -> None:
        self.request: Request | None = None
        self._search = search
        self._has_connector = plan.facts.has_connector
        self.connector: ConnectorQuery | None = None
        self._shortens_prompts = any(map(is_compressed, plan.specs))

    @contextmanager
    def on_behalf_of(self, request: Request) -> Iterator[None]:
        """Name the request whose hashes are looked up inside."""
        self.request = request
        if self.connector is not None:
            self.connector.forget()
        try:
            yield
        finally:
            self.request = None

    def find(self, block_hashes: list[BlockHash], limit: int) -> Hit:
        """Return the longest hit of at most ``limit`` tokens."""
        request = self.request
        # Prompts are shortened for models with compressed rows (vllm-ascend's connectors).
        if request is not None and self._shortens_prompts:
            limit = min(limit, look_up_limit(request.num_tokens, request.kv_transfer_params))
        connector = self.connector
        follow: Callable[[int, int], bool] | None = None
        tail_follows = False
        if connector is not None and request is not None:
            follow = partial(connector.brings_more, request)
            tail_follows = connector.brings_tail(request)
        elif self._has_connector:
            follow = lambda *_: True  # nobody to be asked: it may
        return self._search.find(block_hashes, limit, follow, tail_follows=tail_follows)
