# SPDX-License-Identifier: Apache-2.0
"""The hybrid coordinator: vLLM's interface in front of the parts that do the work."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

from vllm_ascend.core.admission.loaded_first import LoadedFirst
from vllm_ascend.core.admission.request_footprint import RequestFootprint
from vllm_ascend.core.admission.room_to_start import RoomToStart
from vllm_ascend.core.admission.waiting_order import WaitingOrder
from vllm_ascend.core.confirmed_steps import ConfirmedSteps
from vllm_ascend.core.connectors.connector_rules import ConnectorQuery
from vllm_ascend.core.group_managers import make_managers, unzeroed
from vllm_ascend.core.layout.groups import find_draft_groups
from vllm_ascend.core.layout.specs import group_specs
from vllm_ascend.core.lookup.hit_search import Blocks, HitSearch, RequestLookup
from vllm_ascend.core.lookup.prefix_lookup import CacheView, PrefixLookup
from vllm_ascend.core.lookup.successors import SuccessorHashes
from vllm_ascend.core.plan.cache_plan import describe_groups, plan_cache
from vllm_ascend.core.plan.scheduler_facts import scheduler_facts
from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.ranked_caching import RankedCaching
from vllm_ascend.core.reporting.cache_stats import CacheStats, CacheUpdate
from vllm_ascend.core.retention.ledger import Ledger
from vllm_ascend.core.retention.sessions import rewind
from vllm_ascend.core.stock_caching import StockCaching
from vllm_ascend.prefix_cache_config import load_config


class AscendHybridKVCacheCoordinator(HybridKVCacheCoordinator):
    """Coordinates any number of groups of any block sizes, compressed ones included.

    Attributes:
        plan: What is in force.
        lcm_block_size: The alignment in force: hits are multiples of it, in tokens.
        local_kv_retention_interval: ``None`` (every boundary's tail is cached, as in stock
            vLLM), or the retention interval in tokens.
        eagle_group_ids: Groups that may hold layers of a draft model.
        stats: What was counted so far.
        ledger: What every request has entered and copied.
        lookup: Where a hit may end.
        confirmed_steps: What steps whose output is back have loaded and lost.
        caching: What is entered, how long it stays, and who gets memory: as vLLM does it, or by
            rank where any switch is on.
    """

    attention_groups = ()  # vLLM's own look-ups, which ours take the place of, find nothing

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
        """Decide what is in force, and build pool, managers and parts.

        Args:
            eagle_attn_layer_names: Layers of the draft model. Without them, and without a group
                that vLLM flagged, every group that could hold some is taken to.
            max_num_batched_tokens: Tokens of one step; ``max_model_len`` if unknown.
            scheduler_block_size: Alignment asked for by the scheduler, in tokens; hits are
                aligned to it as well, unless they may end at any granule.
            local_kv_retention_interval: Overrides ``VLLM_PREFIX_CACHE_RETENTION_INTERVAL``.

        Raises:
            ValueError: Context parallelism is on; else see ``cache_plan.plan_cache``.
        """
        if dcp_world_size * pcp_world_size != 1:
            raise ValueError(
                "prefix caching over several KV cache groups does not support context "
                f"parallelism (dcp_world_size={dcp_world_size}, pcp_world_size={pcp_world_size})"
            )
        # Past all of vLLM's constructors: they build vLLM's pool, and the hybrid one assumes that
        # block_size counts tokens.
        self.kv_cache_config, self.max_model_len = kv_cache_config, max_model_len
        self.enable_caching, self.hash_block_size = enable_caching, hash_block_size
        self.plan = plan = plan_cache(
            group_specs(kv_cache_config),
            load_config(),
            scheduler_facts(),
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens or max_model_len,
            enable_caching=enable_caching,
            hash_tokens=hash_block_size,
            scheduler_block_size=scheduler_block_size,
            interval=local_kv_retention_interval,
        )
        self.lcm_block_size = plan.alignment
        self.local_kv_retention_interval = plan.interval
        self.request_footprint = RequestFootprint(plan)
        self.block_pool = self._make_pool(enable_kv_cache_events, metrics_collector)
        self.eagle_group_ids = find_draft_groups(
            kv_cache_config, eagle_attn_layer_names, use_eagle=use_eagle
        )
        self._connect_parts()

    def _make_pool(
        self, has_events: bool, metrics_collector: KVCacheMetricsCollector | None
    ) -> BlockPool:
        arguments = (
            self.kv_cache_config.num_blocks,
            self.enable_caching,
            self.hash_block_size,
            has_events,
            metrics_collector,
        )
        if self.plan.is_stock:
            return BlockPool(*arguments)
        return AscendBlockPool(*arguments, tells_front_end=self.plan.facts.tells_front_end)

    def _connect_parts(self) -> None:
        plan, pool = self.plan, self.block_pool
        self.single_type_managers = make_managers(
            self.kv_cache_config.kv_cache_groups,
            plan,
            pool,
            zeroes_new_blocks=self.kv_cache_config.needs_kv_cache_zeroing,
        )
        block_tokens = [manager.block_size for manager in self.single_type_managers]
        read_by_others = plan.terms.coordinator_attributes(
            plan.alignment, plan.interval, block_tokens
        )
        for name, value in read_by_others.items():
            setattr(self, name, value)
        self.groups = describe_groups(self.single_type_managers, self.eagle_group_ids, plan)
        self.stats = CacheStats()
        event_log = getattr(pool, "event_log", None)
        self.successors = successors = SuccessorHashes(plan.hash_tokens, event_log)
        self.ledger = Ledger(has_connector=plan.facts.has_connector)
        self.caching: StockCaching | RankedCaching
        if plan.is_stock:
            self.caching = StockCaching(self, self.groups, plan, successors, self.ledger)
        else:
            self.caching = RankedCaching(
                pool, self.groups, plan, self.request_footprint, successors, self.stats, self.ledger
            )
        self.confirmed_steps = ConfirmedSteps(self.ledger, self.caching, self.single_type_managers)
        self.loaded_first = LoadedFirst()
        self.waiting_order: WaitingOrder | None = None  # the scheduler may ask for one
        self._room_to_start = RoomToStart(self.caching.allocation, self.ledger, self.groups, plan)
        self._view = CacheView(pool, plan, successors)
        self.lookup = RequestLookup(plan, HitSearch(plan, self.groups, self._view))

    # Look-up

    @contextmanager
    def looking_up(self, request: Request) -> Iterator[None]:
        """Name the request whose hashes are looked up inside."""
        if self.ledger.has_connector:
            self.ledger.record(request.request_id).request = request
        self.caching.look_up_starts(request)
        with self.lookup.on_behalf_of(request):
            yield

    def ask_connector(self, query: ConnectorQuery) -> None:
        """Ask before a hit ends inside a block; without it none does where there is a connector."""
        self.lookup.connector = query

    def find_longest_cache_hit(
        self, block_hashes: list[BlockHash], max_cache_hit_length: int
    ) -> tuple:
        """Return the blocks of the longest hit, per group, and its length in tokens.

        Some releases of vLLM expect a third number, see :meth:`VllmTerms.found
        <vllm_ascend.core.plan.vllm_terms.VllmTerms.found>`.

        The hit is a multiple of ``lcm_block_size``, ``max_cache_hit_length`` at most. The blocks
        (see :class:`~vllm_ascend.core.lookup.hit_search.Hit`) are only safe until the next
        allocation.
        """
        started = perf_counter()
        hit = self.lookup.find(block_hashes, max_cache_hit_length)
        if self.lookup.request is not None:
            self.caching.look_up_ends(self.lookup.request, hit)
        self.stats.look_up_seconds.append(perf_counter() - started)
        return self.plan.terms.found(hit.blocks, hit.tokens)

    def cached_tail(
        self, block_hashes: Sequence[BlockHash], boundary: int
    ) -> dict[int, dict[int, int]] | None:
        """Return a boundary's tail as it is cached now: group -> ordinal -> block id.

        ``None``: not all of it is. The blocks are only safe until the next allocation.
        """
        look_up = PrefixLookup(self._view, list(block_hashes))
        tail: dict[int, dict[int, int]] = {}
        for group in self.groups.windowed:
            blocks, end = look_up.tail(group, boundary)
            if end < boundary:
                return None
            ids = [block.block_id for block in blocks]
            tail[group.id] = dict(zip(group.tail(boundary), ids, strict=True))
        return tail

    # Memory

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Blocks,
        num_encoder_tokens: int,
        total_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
        **told: int,
    ) -> int:
        """Return the blocks that a request still needs; see vLLM's base class.

        An asynchronous load needs more: room for those that have loaded before to start in. Whoever
        is to be let in may have to leave room for what is cached.

        Args:
            **told: What later releases tell as well: how many tokens are local, where prefill ends.
        """
        need = self.caching.allocation.get_num_blocks_to_allocate(
            request_id,
            num_tokens,
            new_computed_blocks,
            num_encoder_tokens,
            total_computed_tokens,
            num_tokens_main_model=num_tokens_main_model,
            apply_admission_cap=apply_admission_cap,
            **told,
        )
        if apply_admission_cap and self.waiting_order is not None:
            return need + self.waiting_order.share.blocks_to_leave(request_id, need)
        if num_tokens_main_model > total_computed_tokens:  # as in most calls: no load
            return need
        if self.plan.leaves_room_for_loads and not apply_admission_cap:
            need += self._room_to_start.blocks()
        return need

    def allocate_new_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Blocks,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
        skip_zeroing_group_ids: Collection[int] = (),
    ) -> None:
        """Take a hit's blocks; a block that it ends inside is replaced by a private copy.

        Everything is referenced before anything is allocated, so that no allocation can take what
        the same hit rests on. vLLM goes through the groups one by one: what the first allocates
        for external tokens could be what the second is about to reference.

        Args:
            skip_zeroing_group_ids: In releases that tell, the groups whose new blocks a load writes
                at any time from now on: zeroing them would race it.
        """
        if num_external_computed_tokens:
            self.ledger.load_starts(request_id)
        num_tokens = num_local_computed_tokens + num_external_computed_tokens
        held: list[KVCacheBlock] = []
        for group in self.groups.all if num_external_computed_tokens else ():
            skipped = group.manager.get_num_skipped_tokens(num_tokens) // group.block_tokens
            held += new_computed_blocks[group.id][skipped:]
        self.block_pool.touch(held)
        tokens = num_local_computed_tokens, num_external_computed_tokens
        with unzeroed(self.single_type_managers, skip_zeroing_group_ids):
            self.caching.take_hit(request_id, new_computed_blocks, *tokens)
        self.block_pool.free_blocks(held)
        if num_external_computed_tokens:
            # With one more step in flight, windows leave loaded blocks before a failure is known.
            record = self.ledger.record(request_id)
            record.loading_block_ids = set(self.confirmed_steps.block_ids(request_id))
            record.next_free = 0  # vLLM loads its whole window, of which less may be read

    def allocate_new_blocks(self, *args: Any) -> tuple[list[KVCacheBlock], ...]:
        """Make room for more tokens; see vLLM's base class."""
        return self.caching.allocation.allocate_new_blocks(*args)

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Return the blocks that all running requests share, per group; see vLLM's base class."""
        return self.caching.get_num_common_prefix_blocks(running_request_id)

    # Caching and freeing

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Enter what a request's first ``num_computed_tokens`` tokens fill."""
        self.caching.cache_blocks(request, num_computed_tokens)

    def remove_skipped_blocks(
        self, request_id: str, total_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Free the blocks that every window has left behind.

        Args:
            num_prompt_tokens: In releases that tell, for other kinds of windows.
        """
        self.caching.remove_skipped_blocks(request_id, total_computed_tokens)

    def free(self, request_id: str) -> None:
        """Free a request's blocks."""
        self.caching.free(request_id)

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """Take a request's blocks from it, to be freed later and from the last one on.

        In later releases, where a step in flight may still write them beside a connector.
        """
        return self.caching.pop_blocks_for_free(request_id)

    @contextmanager
    def preempting(self, request_id: str) -> Iterator[None]:
        """Within, a running request is freed that will come back.

        What it entered and has yet to write is withdrawn. What is known of its prompt stays.
        """
        self.caching.withdraw_unwritten(request_id)
        rank = self.caching.rank_of(request_id)
        yield
        self.caching.resume(request_id, rank)

    @contextmanager
    def session_continues(self, session: Request, *, has_new_items: bool) -> Iterator[None]:
        """Within, vLLM adds new input to a streaming session, which drops what it sampled last.

        A draft layer has computed its last row from the first dropped token: nobody else may read
        that row.

        Args:
            has_new_items: The new input has multimodal items.
        """
        holds_nothing = session.num_computed_tokens == 0
        num_kept = rewind(session, self.hash_block_size, has_new_items=has_new_items)
        if num_kept and not holds_nothing and any(group.is_eagle for group in self.groups.all):
            self.ledger.record(session.request_id).stale_tokens.append(num_kept - 1)
            self.successors.drop_from(session.request_id, num_kept)
        yield
        if holds_nothing:
            session.num_computed_tokens = 0
            self.ledger.moves_on(session)

    @contextmanager
    def frees_withdraw(self) -> Iterator[None]:
        """Within, a request that is freed loses its part of the step; see the method above.

        For schedulers that free a running request themselves while they schedule.
        """
        self.caching.withdraws_freed = True
        try:
            yield
        finally:
            self.caching.withdraws_freed = False

    # Steps

    def new_step_starts(self) -> None:
        """A new step is started: the one before has been dispatched."""
        super().new_step_starts()
        self.caching.new_step_starts()
        self.loaded_first.step_starts()
        self._room_to_start.step_starts()
        if not self.kv_cache_config.needs_kv_cache_zeroing:
            # vLLM takes these notes where there are Mamba layers. Elsewhere they would grow for
            # ever (vllm-project/vllm#44490).
            for manager in self.single_type_managers:
                manager.new_block_ids.clear()

    def take_block_copies(self) -> list[KVCacheBlockCopy] | None:
        """Return the copies that the step just scheduled must make first, ``None`` if none."""
        return self.caching.take_block_copies()

    def step_is_dispatched(self, output: SchedulerOutput) -> None:
        """The step has been scheduled, and is told to the workers as ``output``."""
        self.ledger.dispatch(output)

    def take_stats(self) -> CacheUpdate | None:
        """Return what was counted since the last call; ``None`` if nothing, or all is stock."""
        return self.caching.take_stats()
