# SPDX-License-Identifier: Apache-2.0
"""A coordinator's groups and its look-up: where a hit may end, and which blocks it hands out.

A look-up finds the longest match of the downward-closed groups (full and compressed attention)
once, then walks boundaries downwards to the first one at which every other group holds its tail.
Each group's blocks are cut to that boundary, so no request is ever handed a block behind its hit.
"""

from __future__ import annotations

from math import lcm
from time import perf_counter

from vllm.v1.core import kv_cache_coordinator as vllm_coordinator
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

from vllm_ascend.core.admission.request_memory import request_footprint
from vllm_ascend.core.events.announcement import announced_groups
from vllm_ascend.core.events.kv_event_log import KVEventLog
from vllm_ascend.core.events.kv_event_queue import HitRules
from vllm_ascend.core.layout.block_sizes import Granularity
from vllm_ascend.core.layout.groups import Group, describe_groups, find_draft_groups
from vllm_ascend.core.layout.specs import granule_tokens, group_specs, is_windowed
from vllm_ascend.core.lookup.prefix_lookup import CacheView, PrefixLookup
from vllm_ascend.core.lookup.successors import SuccessorHashes
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.reporting.cache_stats import CacheStats
from vllm_ascend.core.reporting.startup_report import PrefixCacheFacts
from vllm_ascend.core.retention.boundaries import align_down, resolve_retention_interval
from vllm_ascend.core.retention.pinning import check_pinning
from vllm_ascend.core.scheduler_facts import scheduler_facts
from vllm_ascend.prefix_cache_config import load_config


class HybridLookupCoordinator(HybridKVCacheCoordinator):
    """Finds hits over any number of groups of any block sizes, compressed ones included.

    Attributes:
        lcm_block_size: The alignment in force: hits are multiples of it, in tokens.
        local_kv_retention_interval: ``None`` (every boundary's tail is cached, as in stock
            vLLM), or the retention interval in tokens.
        eagle_group_ids: Groups that may hold layers of a draft model.
        stats: What was counted so far.
        request_footprint: The most blocks that one request holds.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        use_eagle: bool,
        enable_caching: bool,
        enable_kv_cache_events: bool,
        dcp_world_size: int,
        pcp_world_size: int,
        hash_block_size: int,
        eagle_attn_layer_names: list[str] | None = None,
        metrics_collector: KVCacheMetricsCollector | None = None,
        max_num_batched_tokens: int | None = None,
        scheduler_block_size: int | None = None,
        local_kv_retention_interval: int | None = None,
    ) -> None:
        """Build managers and pool.

        Args:
            hash_block_size: Tokens per request block hash.
            eagle_attn_layer_names: Layers of the draft model. Without them, and without a group
                that vLLM flagged, every group that could hold some is taken to.
            max_num_batched_tokens: Tokens of one step; ``max_model_len`` if unknown.
            scheduler_block_size: Alignment asked for by the scheduler, in tokens; hits are
                aligned to it as well, unless they may end at any granule.
            local_kv_retention_interval: Overrides ``VLLM_PREFIX_CACHE_RETENTION_INTERVAL``.

        Raises:
            ValueError: The interval does not fit the alignment or the model, the model has no
                window to pin, the hash size does not fit the blocks, or context parallelism is
                on.
        """
        if dcp_world_size * pcp_world_size != 1:
            raise ValueError(
                "prefix caching over several KV cache groups does not support context "
                f"parallelism (dcp_world_size={dcp_world_size}, pcp_world_size={pcp_world_size})"
            )
        # Past all of vLLM's constructors: they build vLLM's pool, and the hybrid one assumes that
        # block_size counts tokens.
        config, facts, specs = load_config(), scheduler_facts(), group_specs(kv_cache_config)
        retention = config.retention
        if config.retention_from_profile and not any(map(is_windowed, specs)):
            retention = None
        if local_kv_retention_interval is not None:
            retention = local_kv_retention_interval
        self.kv_cache_config = kv_cache_config
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.use_eagle = use_eagle
        self.hash_block_size = hash_block_size
        self._config = config
        self._facts = facts
        self._max_num_batched_tokens = max_num_batched_tokens or max_model_len
        self._changes_caching = enable_caching and (config.changes_caching or retention is not None)
        self._ends_inside_blocks = (
            enable_caching and config.partial_hits and facts.hits_may_end_inside_blocks
        )
        granularity = Granularity.of(specs, ends_inside_blocks=self._ends_inside_blocks)
        if enable_caching:
            granularity.check_hash_size(hash_block_size, exact_names=self._changes_caching)
        self.lcm_block_size = granularity.alignment
        if not self._ends_inside_blocks:
            block_size = scheduler_block_size or facts.block_size
            self.lcm_block_size = lcm(granularity.alignment, block_size)
        self._keeps_fallback = retention == "auto"
        self.local_kv_retention_interval = resolve_retention_interval(
            retention, self.lcm_block_size, has_windowed_group=any(map(is_windowed, specs))
        )
        check_pinning(
            pin_swa_tokens=config.pin_swa_tokens, has_windowed_group=any(map(is_windowed, specs))
        )
        self.request_footprint = request_footprint(
            specs,
            config,
            facts,
            alignment=self.lcm_block_size,
            interval=self.local_kv_retention_interval,
            changes_caching=self._changes_caching,
            max_num_batched_tokens=self._max_num_batched_tokens,
            max_model_len=max_model_len,
        )
        pool_class = AscendBlockPool if self._changes_caching else BlockPool
        self.block_pool = pool_class(
            kv_cache_config.num_blocks,
            enable_caching,
            hash_block_size,
            enable_kv_cache_events,
            metrics_collector,
        )
        self.single_type_managers = self._make_managers()
        # vLLM notes every new block of full attention, to be zeroed, and takes the notes only where
        # there are Mamba layers: elsewhere they grow for ever. Source: vllm-project/vllm#44490.
        zeroes = kv_cache_config.needs_kv_cache_zeroing
        self._noting_in_vain = () if zeroes else self.single_type_managers
        self.eagle_group_ids = find_draft_groups(
            kv_cache_config, eagle_attn_layer_names, use_eagle=use_eagle
        )
        self._groups = describe_groups(
            specs,
            self.single_type_managers,
            self.eagle_group_ids,
            alignment=self.lcm_block_size,
            ends_inside_blocks=self._ends_inside_blocks,
            changes_caching=self._changes_caching,
        )
        self._downward_closed = [group for group in self._groups if group.is_downward_closed]
        self._windowed = [group for group in self._groups if not group.is_downward_closed]
        self._event_log: KVEventLog | None = getattr(self.block_pool, "event_log", None)
        self._successors = SuccessorHashes(hash_block_size, self._event_log)
        self._state_blocks_entered_this_step: set[int] = set()
        self._view = CacheView(
            pool=self.block_pool,
            hash_tokens=hash_block_size,
            alignment=self.lcm_block_size,
            granules=getattr(self.block_pool, "granules", None),
            concatenates=not self._changes_caching,
            successors=self._successors,
            unwritten_block_ids=self._state_blocks_entered_this_step,
        )
        self.stats = CacheStats()
        self._whole_block_alignment = lcm(*(group.block_tokens for group in self._groups))
        self._probe = self._pick_probe()
        self._describe_events()

    @property
    def changes_caching(self) -> bool:
        """Whether any switch is in force that changes what is cached."""
        return self._changes_caching

    @property
    def copies_blocks(self) -> bool:
        """Whether some group has blocks that a hit may end inside of, which are then copied."""
        return self._ends_inside_blocks and self._whole_block_alignment > self.lcm_block_size

    def _describe_events(self) -> None:
        """Tell those who follow the cache's events what a hit takes."""
        if self._event_log is None:
            return
        rules = HitRules(
            alignment=self.lcm_block_size,
            hash_tokens=self.hash_block_size,
            whole_blocks=self._whole_block_alignment,
            least_gain=self._config.partial_min_hit_tokens if self._ends_inside_blocks else 0,
        )
        specs = group_specs(self.kv_cache_config)
        self._event_log.describe(announced_groups(self._groups, specs, rules), rules)

    def startup_facts(self) -> PrefixCacheFacts:
        """Return what is in force, for what is told at the start."""
        specs = group_specs(self.kv_cache_config)
        return PrefixCacheFacts(
            specs=specs,
            config=self._config,
            num_blocks=self.kv_cache_config.num_blocks,
            max_model_len=self.max_model_len,
            granule=granule_tokens(specs),
            alignment=self.lcm_block_size,
            interval=self.local_kv_retention_interval,
            changes_caching=self._changes_caching,
            has_connector=self._facts.has_connector,
            max_num_batched_tokens=self._max_num_batched_tokens,
            connector_knows_granules=self._facts.connector_knows_granules,
        )

    def _make_managers(self) -> tuple[SingleTypeKVCacheManager, ...]:
        return tuple(
            vllm_coordinator.get_manager_for_kv_cache_spec(
                kv_cache_spec=group.kv_cache_spec,
                max_num_batched_tokens=self._max_num_batched_tokens,
                max_model_len=self.max_model_len,
                block_pool=self.block_pool,
                enable_caching=self.enable_caching,
                kv_cache_group_id=group_id,
            )
            for group_id, group in enumerate(self.kv_cache_config.kv_cache_groups)
        )

    def _pick_probe(self) -> Group | None:
        """Return a group whose tails always have a last block, named by the boundary's hash."""
        if not self._changes_caching:
            return None
        return next((group for group in self._windowed if group.tail(self.lcm_block_size)), None)

    # Look-up

    def find_longest_cache_hit(
        self, block_hashes: list[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the blocks of the longest hit, per group, and its length in tokens.

        Args:
            block_hashes: The request's hashes, one per ``hash_block_size`` tokens.
            max_cache_hit_length: Upper bound in tokens.

        Returns:
            Blocks of ``[0, hit)`` with null blocks where a window has moved on, and the hit: the
            largest multiple of ``lcm_block_size`` at which every group can resume. Where the hit
            ends inside a block, that block is the group's last one; it is to be copied, not
            shared. Nothing is referenced yet; the blocks are only safe until the next allocation.
        """
        started = perf_counter()
        blocks, hit = self._find(block_hashes, max_cache_hit_length)
        self.stats.look_up_seconds.append(perf_counter() - started)
        return blocks, hit

    def _find(
        self, block_hashes: list[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        look_up = PrefixLookup(self._view, block_hashes)
        prefixes: dict[int, list[KVCacheBlock]] = {}
        limit = max_cache_hit_length
        for group in self._downward_closed:
            prefixes[group.id], limit = look_up.longest_prefix(group, limit)

        boundary, ends = self._walk(look_up, limit, self.lcm_block_size)
        resumable = boundary
        may_end_earlier = self._facts.has_connector or self._config.partial_min_hit_tokens
        ends_inside = self._ends_inside_blocks and boundary % self._whole_block_alignment
        if may_end_earlier and ends_inside:
            boundary, ends = self._settle(look_up, boundary, ends)
        self._note_look_up(limit, resumable, boundary)
        if not boundary:
            return tuple([] for _ in self._groups), 0
        return self._assemble(boundary, prefixes, ends), boundary

    def _note_look_up(self, matched: int, resumable: int, hit: int) -> None:
        """Called with how far full groups match, where all can resume, and what is handed out."""

    def _settle(
        self, look_up: PrefixLookup, boundary: int, ends: dict[int, list[KVCacheBlock]]
    ) -> tuple[int, dict[int, list[KVCacheBlock]]]:
        """Decide between a hit that ends inside a block and the last one that does not."""
        whole, whole_ends = self._walk(look_up, boundary, self._whole_block_alignment)
        gain = boundary - whole
        if gain < self._config.partial_min_hit_tokens or self._external_tokens_follow(whole):
            return whole, whole_ends
        return boundary, ends

    def _external_tokens_follow(self, num_local_tokens: int) -> bool:
        """Whether a connector brings tokens behind a local hit, or may."""
        return self._facts.has_connector

    def _walk(
        self, look_up: PrefixLookup, limit: int, step: int
    ) -> tuple[int, dict[int, list[KVCacheBlock]]]:
        """Return the largest boundary up to ``limit`` at which all groups can resume.

        Returns:
            The boundary, 0 if there is none, and by group what lies at its end: a tail, or the
            block to be copied.
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

    def _ends_at(
        self, look_up: PrefixLookup, boundary: int
    ) -> tuple[dict[int, list[KVCacheBlock]], int]:
        """Return what every group has at the end of a hit, and the boundary; or a smaller bound."""
        ends: dict[int, list[KVCacheBlock]] = {}
        for group in self._windowed:
            ends[group.id], bound = look_up.tail(group, boundary)
            if bound < boundary:
                return {}, bound
        for group in self._downward_closed:
            if group.ends_inside and boundary % group.block_tokens:
                source, bound = look_up.source(group, boundary)
                if source is None:
                    return {}, bound
                ends[group.id] = [source]
        return ends, boundary

    def _assemble(
        self,
        boundary: int,
        prefixes: dict[int, list[KVCacheBlock]],
        ends: dict[int, list[KVCacheBlock]],
    ) -> tuple[list[KVCacheBlock], ...]:
        """Return every group's blocks of ``[0, boundary)``, cut to exactly that."""
        null_block = self.block_pool.null_block

        def blocks_of(group: Group) -> list[KVCacheBlock]:
            num_blocks = boundary // group.block_tokens
            end = ends.get(group.id, [])
            if group.is_downward_closed:
                return prefixes[group.id][:num_blocks] + end
            return [null_block] * (num_blocks - len(end)) + end

        return tuple(blocks_of(group) for group in self._groups)

    # Caching and freeing, as stock vLLM does it

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Enter the full blocks of a request's first ``num_computed_tokens`` tokens.

        Blocks are entered when they are scheduled, before they are computed, as in vLLM.
        """
        for group in self._groups:
            self._enter_full_blocks(group, request, num_computed_tokens)

    def _enter_full_blocks(self, group: Group, request: Request, num_tokens: int) -> list[int]:
        """Enter what ``num_tokens`` tokens fill in one group; return the ordinals entered."""
        manager = group.manager
        first_new = manager.num_cached_block.get(request.request_id, 0)
        manager.cache_blocks(request, num_tokens)
        if group.is_eagle:
            self._successors.resolve_pending(group.id, request)
        end = manager.num_cached_block.get(request.request_id, 0)
        if first_new >= end:
            return []
        blocks = manager.req_to_blocks[request.request_id]
        entered = [i for i in range(first_new, end) if blocks[i].block_hash is not None]
        if group.is_eagle:
            for i in entered:
                end_tokens = (i + 1) * group.block_tokens
                self._successors.remember(group.id, request, blocks[i], end_tokens)
        return entered

    def free(self, request_id: str) -> None:
        """Free a request's blocks."""
        self._successors.forget(request_id)
        super().free(request_id)

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Free the blocks that every window has left behind.

        Under async scheduling the count may include drafts of the step in flight. Should they be
        rejected, the next step starts that much earlier, and so does its window.
        Source: vllm-project/vllm#47728.
        """
        confirmed = max(total_computed_tokens - self._facts.num_unconfirmed_tokens, 0)
        super().remove_skipped_blocks(request_id, confirmed)

    def new_step_starts(self) -> None:
        """Called when a new step is started."""
        super().new_step_starts()
        self._state_blocks_entered_this_step.clear()
        for manager in self._noting_in_vain:
            manager.new_block_ids.clear()
