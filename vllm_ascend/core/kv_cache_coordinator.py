# SPDX-License-Identifier: Apache-2.0
"""Two hybrid coordinators: vLLM's own, corrected, and with any switch on the one by rank.

The second is the first with :class:`~vllm_ascend.core.ranked_caching.RankedCaching` over it: vLLM's
calls reach the methods that do the work. Parts behind a contract would take a method more for each
call, and a second part that does nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from vllm_ascend.core.group_managers import enter_full_blocks, make_managers, unzeroed
from vllm_ascend.core.layout.groups import Blocks, find_draft_groups
from vllm_ascend.core.layout.specs import group_specs
from vllm_ascend.core.lookup.hit_search import Hit, HitSearch, RequestLookup
from vllm_ascend.core.lookup.prefix_lookup import CacheView
from vllm_ascend.core.new_prompts import NewPrompts
from vllm_ascend.core.plan.cache_plan import describe_groups, plan_cache
from vllm_ascend.core.plan.scheduler_facts import scheduler_facts
from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.core.pool.successors import SuccessorHashes
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.ranked_caching import RankedCaching
from vllm_ascend.core.reporting.cache_stats import CacheStats, CacheUpdate
from vllm_ascend.core.retention.ledger import Ledger
from vllm_ascend.core.retention.request_record import RequestRecord
from vllm_ascend.core.retention.sessions import rewind
from vllm_ascend.core.ring_tails.caching import RingCaching, check_rings
from vllm_ascend.prefix_cache_config import load_config


class AscendHybridKVCacheCoordinator(HybridKVCacheCoordinator):
    """vLLM's own caching over any number of groups of any block sizes, compressed ones included.

    It is corrected where it would read rows of other tokens. vLLM counts a draft layer's last row
    as good for any continuation and gives a block of every hit up for it; here blocks know what
    followed them. It frees windows as if the drafts of the step in flight were accepted. And it
    enters what a connector has yet to load.

    Attributes:
        plan: What is in force.
        lcm_block_size: The alignment in force: hits are multiples of it, in tokens.
        local_kv_retention_interval: ``None`` (every boundary's tail is cached, as in stock
            vLLM), or the retention interval in tokens.
        eagle_group_ids: Groups that may hold layers of a draft model.
        stats: What was counted so far.
        ledger: What every request has entered and copied.
        search: Where a hit may end.
        lookup: The same on behalf of a request.
        confirmed_steps: What steps whose output is back have loaded and lost.
        successors: What followed the blocks that hold rows of draft layers.
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
        """Decide what is in force, become a :class:`RankedCoordinator` if anything is, and build.

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
        if enable_caching and plan.has_rings:
            check_rings(plan)
        if not plan.is_stock:
            by_rank: Any = RingCoordinator if plan.has_rings else RankedCoordinator
            self.__class__ = by_rank
        self.lcm_block_size, self.local_kv_retention_interval = plan.alignment, plan.interval
        self.request_footprint = RequestFootprint(plan)
        arguments = (kv_cache_config.num_blocks, enable_caching, hash_block_size)
        self.block_pool = self._make_pool(*arguments, enable_kv_cache_events, metrics_collector)
        self.eagle_group_ids = find_draft_groups(
            kv_cache_config, eagle_attn_layer_names, use_eagle=use_eagle
        )
        self._connect_parts()

    def _make_pool(self, *arguments: Any) -> BlockPool:
        return BlockPool(*arguments)

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
        self.successors = SuccessorHashes(plan.hash_tokens, event_log)
        self.ledger = Ledger(has_connector=plan.facts.has_connector)
        self.confirmed_steps = ConfirmedSteps(self.ledger, self, self.single_type_managers)
        self.loaded_first = LoadedFirst()
        self.new_prompts = NewPrompts()
        self.waiting_order: WaitingOrder | None = None  # the scheduler may ask for one
        self._room_to_start = RoomToStart(self.blocks_needed, self.ledger, self.groups, plan)
        self.search = HitSearch(plan, self.groups, CacheView(pool, plan, self.successors))
        self.lookup = RequestLookup(plan, self.search)

    # Look-up

    @contextmanager
    def looking_up(self, request: Request) -> Iterator[None]:
        """Name the request whose hashes are looked up inside."""
        if self.ledger.has_connector or not self.plan.is_stock:
            record = self.ledger.record(request.request_id)
            record.request = request
            # It may be let in behind another hit than the one before, which found no memory.
            record.next_free = 0
        with self.lookup.on_behalf_of(request):
            yield

    def find_longest_cache_hit(
        self, block_hashes: list[BlockHash], max_cache_hit_length: int
    ) -> tuple:
        """Return the blocks of the longest hit, per group, and its length in tokens.

        Some releases of vLLM expect a third number (``VllmTerms.found``).

        The hit is a multiple of ``lcm_block_size``, ``max_cache_hit_length`` at most. The blocks
        (see :class:`~vllm_ascend.core.lookup.hit_search.Hit`) are only safe until the next
        allocation.
        """
        started = perf_counter()
        hit = self.lookup.find(block_hashes, max_cache_hit_length)
        if self.lookup.request is not None:
            self.note_hit(self.lookup.request, hit)
        self.stats.look_up_seconds.append(perf_counter() - started)
        return self.plan.terms.found(hit.blocks, hit.tokens)

    def note_hit(self, request: Request, hit: Hit) -> None:
        """A request has been looked up. There are no junctions to remember."""

    # Memory

    def blocks_needed(self, *args: Any, **kwargs: Any) -> int:
        """Return the blocks that a request still needs for itself; see vLLM's base class."""
        return super().get_num_blocks_to_allocate(*args, **kwargs)

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

        Whoever is to be let in leaves room for those that have loaded before to start in, and may
        have to leave some for what is cached.

        Args:
            **told: What later releases tell as well: how many tokens are local, where prefill ends.
        """
        need = self.blocks_needed(
            request_id,
            num_tokens,
            new_computed_blocks,
            num_encoder_tokens,
            total_computed_tokens,
            num_tokens_main_model=num_tokens_main_model,
            apply_admission_cap=apply_admission_cap,
            **told,
        )
        if not apply_admission_cap and num_tokens_main_model > total_computed_tokens:
            return need  # as in most calls: it runs, or starts now
        leaves_room = apply_admission_cap or self.plan.leaves_room_for_loads
        if leaves_room and self.ledger.has_connector and not self.ledger.awaits_start(request_id):
            need += self._room_to_start.blocks()
        if apply_admission_cap and self.waiting_order is not None:
            need += self.waiting_order.share.blocks_to_leave(request_id, need)
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
        counts = (num_local_computed_tokens, num_external_computed_tokens)
        if not num_external_computed_tokens:
            self.take_hit(request_id, new_computed_blocks, *counts)
            return
        self.ledger.load_starts(request_id)
        held: list[KVCacheBlock] = []
        num_skipped = [
            group.manager.get_num_skipped_tokens(sum(counts)) // group.block_tokens
            for group in self.groups.all
        ]
        for group, skipped in zip(self.groups.all, num_skipped, strict=True):
            held += new_computed_blocks[group.id][skipped:]
        self.block_pool.touch(held)
        with unzeroed(self.single_type_managers, skip_zeroing_group_ids):
            self.take_hit(request_id, new_computed_blocks, *counts)
        self.block_pool.free_blocks(held)
        # With one more step in flight, windows leave loaded blocks before a failure is known.
        record = self.ledger.record(request_id)
        # Null blocks in front of windows are left out: a hundred thousand of a million tokens.
        record.loading_block_ids = {
            block.block_id
            for group, skipped in zip(self.groups.all, num_skipped, strict=True)
            for block in group.manager.req_to_blocks[request_id][skipped:]
        }
        record.next_free = 0  # vLLM loads its whole window, of which less may be read

    def take_hit(self, *args: Any) -> None:
        """Let a request in behind its hit; see vLLM's ``allocate_new_computed_blocks``."""
        super().allocate_new_computed_blocks(*args)

    # Caching and freeing

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Enter the full blocks of a request's first ``num_computed_tokens`` tokens."""
        if self.ledger.has_connector:
            self.ledger.open(self.ledger.record(request.request_id))
            if self.ledger.awaits_load(request, num_computed_tokens):
                return
        record = self.ledger.records.get(request.request_id)
        for group in self.groups.all:
            end = num_computed_tokens
            if record is not None and group.is_eagle:
                end = min(end, record.end_before_stale(group))
            enter_full_blocks(group, request, end, self.successors, self.plan.terms)

    def remove_skipped_blocks(
        self, request_id: str, total_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Free the blocks that every window has left behind.

        Under async scheduling the count may include drafts of the step in flight. Should they be
        rejected, the next step starts that much earlier, and so does its window.
        Source: vllm-project/vllm#47728.

        Args:
            num_prompt_tokens: In releases that tell, for other kinds of windows.
        """
        confirmed = max(total_computed_tokens - self.plan.num_unconfirmed_tokens, 0)
        super().remove_skipped_blocks(request_id, confirmed)

    def free(self, request_id: str) -> None:
        """Free a request's blocks."""
        self._forget(request_id)
        super().free(request_id)

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """Take a request's blocks from it, to be freed later and from the last one on.

        In later releases, where a step in flight may still write them beside a connector.
        """
        self._forget(request_id)
        return super().pop_blocks_for_free(request_id)

    def _forget(self, request_id: str) -> None:
        self.successors.forget(request_id)
        self.ledger.forget(request_id)

    def lose(self, request_id: str) -> None:
        """Enter nothing more of a request: it rests on blocks that could not be loaded."""
        self.ledger.record(request_id).is_loading = True

    def preempting(self, request_id: str) -> AbstractContextManager[None]:
        """Within, a running request is freed that will come back."""
        return nullcontext()  # nothing is withdrawn

    def frees_withdraw(self) -> AbstractContextManager[None]:
        """Within, a scheduler may free running requests itself."""
        return nullcontext()

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

    # Steps

    def new_step_starts(self) -> None:
        """A new step is started: the one before has been dispatched."""
        super().new_step_starts()
        self.settle(self.ledger.next_step())
        self.loaded_first.step_starts()
        self._room_to_start.step_starts()
        if not self.kv_cache_config.needs_kv_cache_zeroing:
            # vLLM takes these notes where there are Mamba layers. Elsewhere they would grow for
            # ever (vllm-project/vllm#44490).
            for manager in self.single_type_managers:
                manager.new_block_ids.clear()

    def settle(self, records: Iterable[RequestRecord]) -> None:
        """What the step before writes may be read from now on. Nothing has waited for that."""

    def take_block_copies(self) -> list[KVCacheBlockCopy] | None:
        """Return the copies that the step just scheduled must make first, ``None`` if none."""
        return None

    def release_copies(self, record: RequestRecord) -> None:
        """The step that was told a request's copies has run. Nothing is copied."""

    def step_is_dispatched(self, output: SchedulerOutput) -> None:
        """The step has been scheduled, and is told to the workers as ``output``."""
        self.ledger.dispatch(output)

    def take_stats(self) -> CacheUpdate | None:
        """Return what was counted since the last call; ``None`` if nothing, or all is stock."""
        return None


class RankedCoordinator(RankedCaching, AscendHybridKVCacheCoordinator):
    """Any switch is on: what is cached has a rank that says how long it stays."""

    def _make_pool(self, *arguments: Any) -> BlockPool:
        return AscendBlockPool(*arguments, tells_front_end=self.plan.facts.tells_front_end)

    def _connect_parts(self) -> None:
        super()._connect_parts()
        self.connect_parts_by_rank()


class RingCoordinator(RingCaching, RankedCoordinator):
    """The same where compressor state is in rings."""
