# SPDX-License-Identifier: Apache-2.0
"""The hybrid coordinator: where a hit may end, and which blocks it hands out.

A look-up finds the longest match of the downward-closed groups (full and compressed attention)
once, then walks aligned boundaries downwards to the first one at which every other group holds
its tail. Each group's blocks are cut to that boundary, so no request is ever handed a block
behind its hit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import lcm

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator, KVCacheCoordinator
from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

from vllm_ascend.core.prefix_lookup import Group, PrefixLookup
from vllm_ascend.core.retention import align_down, resolve_retention_interval
from vllm_ascend.core.specs import (
    group_specs,
    is_compressor_state,
    is_downward_closed,
    is_windowed,
    may_hold_draft_layers,
    tokens_per_block,
)
from vllm_ascend.core.successors import SuccessorHashes
from vllm_ascend.envs import load_config


@dataclass(frozen=True)
class SchedulerFacts:
    """What a coordinator must know of its scheduler.

    Attributes:
        block_size: The alignment that the scheduler works with, in tokens.
        num_unconfirmed_tokens: Tokens that the scheduler may count as computed although they are
            drafts of a step still in flight (async scheduling with speculation).
    """

    block_size: int = 1
    num_unconfirmed_tokens: int = 0


_SCHEDULER_FACTS: ContextVar[SchedulerFacts] = ContextVar(
    "scheduler_facts",
    default=SchedulerFacts(),  # noqa: B039 - it is frozen
)


@contextmanager
def coordinators_told(**facts: int) -> Iterator[None]:
    """Tell the coordinators that are built inside about their scheduler.

    vLLM 0.20.2's constructors in between do not pass it on.

    Args:
        facts: Fields of :class:`SchedulerFacts`; the others keep their values.
    """
    token = _SCHEDULER_FACTS.set(replace(_SCHEDULER_FACTS.get(), **facts))
    try:
        yield
    finally:
        _SCHEDULER_FACTS.reset(token)


class AscendHybridKVCacheCoordinator(HybridKVCacheCoordinator):
    """Coordinates any number of groups of any block sizes, compressed ones included.

    Attributes:
        lcm_block_size: The alignment in force: hits are multiples of it, in tokens.
        local_kv_retention_interval: ``None`` (every boundary's tail is cached, as in stock
            vLLM), or the retention interval in tokens.
        eagle_group_ids: Groups that may hold layers of a draft model.
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
            hash_block_size: Tokens per request block hash; divides every group's block.
            eagle_attn_layer_names: Layers of the draft model. Without them, and without a group
                that vLLM flagged, every group that could hold some is taken to.
            max_num_batched_tokens: Tokens of one step; ``max_model_len`` if unknown.
            scheduler_block_size: Alignment asked for by the scheduler, in tokens; hits are
                aligned to it as well.
            local_kv_retention_interval: Overrides ``VLLM_PREFIX_CACHE_RETENTION_INTERVAL``.

        Raises:
            ValueError: The interval does not fit the alignment or the model, or context
                parallelism is on.
        """
        if dcp_world_size * pcp_world_size != 1:
            raise ValueError(
                "prefix caching over several KV cache groups does not support context "
                f"parallelism (dcp_world_size={dcp_world_size}, pcp_world_size={pcp_world_size})"
            )
        # Past HybridKVCacheCoordinator.__init__: it assumes that block_size counts tokens.
        KVCacheCoordinator.__init__(
            self,
            kv_cache_config,
            max_model_len,
            max_num_batched_tokens or max_model_len,
            use_eagle,
            enable_caching,
            enable_kv_cache_events,
            dcp_world_size=dcp_world_size,
            pcp_world_size=pcp_world_size,
            hash_block_size=hash_block_size,
            metrics_collector=metrics_collector,
        )
        specs = group_specs(kv_cache_config)
        sizes = [tokens_per_block(spec) for spec in specs]
        if enable_caching and any(size % hash_block_size for size in sizes):
            raise ValueError(
                f"hash_block_size ({hash_block_size}) must divide the tokens per block of every "
                f"KV cache group ({sizes})"
            )
        self.hash_block_size = hash_block_size
        facts = _SCHEDULER_FACTS.get()
        self.lcm_block_size = lcm(*sizes, scheduler_block_size or facts.block_size)
        self._num_unconfirmed_tokens = facts.num_unconfirmed_tokens
        retention = load_config().retention
        self.local_kv_retention_interval = resolve_retention_interval(
            retention if local_kv_retention_interval is None else local_kv_retention_interval,
            self.lcm_block_size,
            has_windowed_group=any(map(is_windowed, specs)),
        )
        self.use_eagle = use_eagle
        if use_eagle and eagle_attn_layer_names:
            self.eagle_group_ids = _groups_of_layers(kv_cache_config, eagle_attn_layer_names)
        elif use_eagle and not any(g.is_eagle_group for g in kv_cache_config.kv_cache_groups):
            candidates = {i for i, spec in enumerate(specs) if may_hold_draft_layers(spec)}
            self.eagle_group_ids = candidates or self.eagle_group_ids
        self._groups = [
            Group(
                id=i,
                manager=manager,
                block_tokens=size,
                is_downward_closed=is_downward_closed(spec),
                is_compressor_state=is_compressor_state(spec),
                is_eagle=i in self.eagle_group_ids,
            )
            for i, (manager, spec, size) in enumerate(
                zip(self.single_type_managers, specs, sizes, strict=True)
            )
        ]
        self._successors = SuccessorHashes(hash_block_size)
        self._state_blocks_entered_this_step: set[int] = set()
        self._entered_this_step: defaultdict[str, list[int]] = defaultdict(list)
        self._switch_retention_on()

    def _switch_retention_on(self) -> None:
        if self.local_kv_retention_interval is None:
            return
        self.block_pool.scratch_first = True
        if self.eagle_group_ids:
            for manager in self.single_type_managers:
                manager.replay_lookahead_tokens = self.hash_block_size

    # Allocation

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: tuple[Sequence[KVCacheBlock], ...],
        num_encoder_tokens: int,
        total_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """Return the blocks that a request still needs; see vLLM's base class.

        vLLM caps a windowed group's blocks counted from the request's first token, and then
        deducts those in front of the window: behind a long hit nothing is left, the request is
        let in without memory for its next chunk, and preempts itself over and over. Here the cap
        bounds what is needed behind the hit.
        """
        arguments = (num_encoder_tokens, total_computed_tokens, num_tokens_main_model)
        if not apply_admission_cap or self.local_kv_retention_interval is None:
            return super().get_num_blocks_to_allocate(
                request_id, num_tokens, new_computed_blocks, *arguments, apply_admission_cap
            )

        def needed(group: Group) -> int:
            blocks = group.manager.get_num_blocks_to_allocate(
                request_id,
                num_tokens,
                new_computed_blocks[group.id],
                total_computed_tokens,
                num_tokens_main_model,
                apply_admission_cap=group.is_downward_closed,
            )
            cap = group.manager._max_admission_blocks_per_request
            if group.is_downward_closed or cap is None:
                return blocks
            return min(blocks, cap + cdiv(self._num_unconfirmed_tokens, group.block_tokens))

        return sum(map(needed, self._groups))

    # Caching

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Enter the blocks of a request's first ``num_computed_tokens`` tokens.

        Blocks are entered when they are scheduled, before they are computed, as in vLLM.
        """
        retention = self.local_kv_retention_interval
        alignment = None if retention is None else self.lcm_block_size
        for group in self._groups:
            manager = group.manager
            first_new = manager.num_cached_block.get(request.request_id, 0)
            manager.cache_blocks(
                request,
                num_computed_tokens,
                retention_interval=retention,
                alignment_tokens=alignment,
            )
            if group.is_eagle:
                self._successors.resolve_pending(group.id, request)
            end = manager.num_cached_block.get(request.request_id, 0)
            if first_new < end:
                self._note_entered(group, request, range(first_new, end))

    def _note_entered(self, group: Group, request: Request, ordinals: range) -> None:
        """Remember of the blocks just entered what a later look-up must know."""
        blocks = group.manager.req_to_blocks[request.request_id]
        entered = [i for i in ordinals if blocks[i].block_hash is not None]
        if group.is_eagle:
            for i in entered:
                end_tokens = (i + 1) * group.block_tokens
                self._successors.remember(group.id, request, blocks[i], end_tokens)
        if self.local_kv_retention_interval is None:
            return
        ids = [blocks[i].block_id for i in entered]
        self._entered_this_step[request.request_id].extend(ids)
        if group.is_compressor_state:
            self._state_blocks_entered_this_step.update(ids)

    def withdraw_unwritten(self, request_id: str) -> None:
        """Take back the blocks that a request entered in the step being scheduled.

        Called when it is preempted: its part of the step will not run, so nobody will ever write
        what the blocks' keys promise. With retention off nothing is remembered and nothing
        withdrawn, as in stock vLLM.
        """
        self.block_pool.evict_blocks(set(self._entered_this_step.pop(request_id, ())))

    def free(self, request_id: str) -> None:
        """Free a request's blocks, deep ones first over all groups.

        A hit needs every group, so the groups' chains have to shrink together: were one group
        freed after another, pressure would first empty one of them and leave the rest useless.
        """
        self._successors.forget(request_id)
        if self.local_kv_retention_interval is None:
            super().free(request_id)
            return
        held: list[tuple[int, KVCacheBlock]] = []
        for group in self._groups:
            blocks = group.manager.req_to_blocks.pop(request_id, [])
            held.extend(
                (ordinal * group.block_tokens, block)
                for ordinal, block in enumerate(blocks)
                if not block.is_null
            )
            group.manager.free(request_id)
        held.sort(key=lambda start_and_block: start_and_block[0], reverse=True)
        self.block_pool.free_blocks(block for _, block in held)

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Free the blocks that every window has left behind.

        Under async scheduling the count may include drafts of the step in flight. Should they be
        rejected, the next step starts that much earlier, and so does its window.
        Source: vllm-project/vllm#47728.
        """
        confirmed = max(total_computed_tokens - self._num_unconfirmed_tokens, 0)
        super().remove_skipped_blocks(request_id, confirmed)

    def new_step_starts(self) -> None:
        """Called when a new step is started."""
        super().new_step_starts()
        self._state_blocks_entered_this_step.clear()
        self._entered_this_step.clear()

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
            largest multiple of ``lcm_block_size`` at which every group can resume. Nothing is
            referenced yet; the blocks are only safe until the next allocation.
        """
        look_up = PrefixLookup(
            block_hashes,
            self.hash_block_size,
            pool=self.block_pool,
            successors=self._successors,
            unwritten_block_ids=self._state_blocks_entered_this_step,
        )
        prefixes: dict[int, list[KVCacheBlock]] = {}
        limit = max_cache_hit_length
        for group in self._groups:
            if group.is_downward_closed:
                prefixes[group.id] = look_up.longest_prefix(group, limit)
                limit = min(limit, len(prefixes[group.id]) * group.block_tokens)

        boundary = align_down(limit, self.lcm_block_size)
        while boundary > 0:
            tails: dict[int, list[KVCacheBlock]] = {}
            next_limit = boundary
            for group in self._groups:
                if not group.is_downward_closed:
                    tails[group.id], next_limit = look_up.tail(group, boundary)
                    if next_limit < boundary:
                        break
            if next_limit == boundary:
                return self._assemble(boundary, prefixes, tails), boundary
            boundary = align_down(next_limit, self.lcm_block_size)
        return tuple([] for _ in self._groups), 0

    def _assemble(
        self,
        boundary: int,
        prefixes: dict[int, list[KVCacheBlock]],
        tails: dict[int, list[KVCacheBlock]],
    ) -> tuple[list[KVCacheBlock], ...]:
        """Return every group's blocks of ``[0, boundary)``, cut to exactly that."""
        null_block = self.block_pool.null_block

        def blocks_of(group: Group) -> list[KVCacheBlock]:
            num_blocks = boundary // group.block_tokens
            if group.is_downward_closed:
                return prefixes[group.id][:num_blocks]
            tail = tails[group.id]
            return [null_block] * (num_blocks - len(tail)) + tail

        return tuple(blocks_of(group) for group in self._groups)


def _groups_of_layers(kv_cache_config: KVCacheConfig, layer_names: list[str]) -> set[int]:
    """Return the groups that hold any of the layers.

    Raises:
        ValueError: A layer is in no group.
    """
    by_layer = {
        layer: i
        for i, group in enumerate(kv_cache_config.kv_cache_groups)
        for layer in group.layer_names
    }
    unknown = sorted(set(layer_names) - set(by_layer))
    if unknown:
        raise ValueError(f"draft layers {unknown} are in no KV cache group")
    return {by_layer[layer] for layer in layer_names}
