# SPDX-License-Identifier: Apache-2.0
"""The plan of one engine's prefix cache, made once, before any block is handed out.

The coordinator, its parts, the checks at the start and the start-up log all read the same plan, so
they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import Any

from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.connectors.connector_rules import (
    TAKES_SPARE_TAILS,
)
from vllm_ascend.core.layout.block_sizes import Granularity
from vllm_ascend.core.layout.groups import Group, Groups, hits_end_inside, tail_length, tail_spec
from vllm_ascend.core.layout.specs import (
    carries_ring,
    has_rings,
    is_compressor_state,
    is_downward_closed,
    is_windowed,
    read_span,
    tokens_per_block,
    window_span,
)
from vllm_ascend.core.plan.scheduler_facts import SchedulerFacts
from vllm_ascend.core.plan.vllm_terms import VllmTerms
from vllm_ascend.core.policy.boundaries import align_down, resolve_retention_interval
from vllm_ascend.core.policy.pinning import check_pinning
from vllm_ascend.core.policy.ranks import CONNECTOR_SPARE_SPACING
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.core.policy.units import GroupId


@dataclass(frozen=True)
class CachePlan:
    """The settings in force.

    Attributes:
        specs: The unpacked spec of every KV cache group.
        granule: The finest unit in which hits can be measured, in tokens.
        alignment: Hits are multiples of this, in tokens.
        whole_block_tokens: Hits at multiples of this end inside no block, in tokens.
        hash_tokens: Tokens per request hash.
        interval: Tokens between boundaries that are kept; ``None``: all of them are.
        keeps_fallback: A boundary shortly before the replay boundary is kept as well.
        is_stock: No switch changes what is cached: everything is as in stock vLLM.
        ends_inside_blocks: Hits may end inside blocks of compressed rows, which are then copied.
        max_num_batched_tokens: Tokens of one step.
        leaves_room_for_loads: A load leaves those that have loaded before room to start in, also
            where ``--no-scheduler-reserve-full-isl`` has nobody counted whole. Some releases of
            vLLM see to that themselves.
    """

    specs: tuple[KVCacheSpec, ...]
    config: PrefixCacheConfig
    facts: SchedulerFacts
    granule: int
    alignment: int
    whole_block_tokens: int
    hash_tokens: int
    interval: int | None
    keeps_fallback: bool
    is_stock: bool
    ends_inside_blocks: bool
    max_num_batched_tokens: int
    max_model_len: int
    leaves_room_for_loads: bool = False

    @property
    def terms(self) -> VllmTerms:
        """What differs between releases of vLLM."""
        return self.facts.terms

    @property
    def tails_interval(self) -> int | None:
        """The interval at which tails are kept.

        Kept like prefixes, the tails of all boundaries would push out the prefixes that pinned
        ones belong to: without an interval those that are not pinned are spare.
        """
        pins = self.config.pin_swa_tokens
        return 0 if pins and self.interval is None else self.interval

    @property
    def keeps_spares(self) -> bool:
        """Whether the tails of boundaries that nothing asks to keep are entered as well."""
        if self.tails_interval is None:
            return False
        return self.config.spare_tails or self.interval is None

    @cached_property
    def num_unconfirmed_tokens(self) -> int:
        """How far a step may start before the computed count, or commit beyond it, in tokens.

        Drafts of the step in flight may be rejected, and the drafts of one step pass a boundary
        together.
        """
        drafts = 0 if self.is_stock else self.facts.num_draft_tokens
        return drafts + self.facts.num_unconfirmed_tokens

    def is_sparse(self, spec: KVCacheSpec) -> bool:
        """Whether a group, of this unpacked spec, holds compressor state only where it is read."""
        if self.is_stock or not self.config.sparse_state:
            return False
        # vllm-ascend's own module of that name, where it has one, imports the managers.
        from vllm_ascend.core.kv_cache_interface import AscendSlidingWindowMLASpec

        # Only Ascend's kernels skip writes to the null block.
        is_ascend_state = isinstance(spec, AscendSlidingWindowMLASpec) and is_compressor_state(spec)
        return is_ascend_state and self.facts.state_may_be_sparse

    @property
    def has_rings(self) -> bool:
        """Whether compressor state is in rings, of which tails carry snapshots."""
        return has_rings(self.specs)

    @property
    def connector_spares_every(self) -> int:
        """Tokens between the boundaries whose tails a connector takes as spare ones; 0: none."""
        is_asked = self.facts.connector_takes(TAKES_SPARE_TAILS)
        return CONNECTOR_SPARE_SPACING * self.alignment if is_asked else 0

    @property
    def copies_blocks(self) -> bool:
        """Whether some group has blocks that a hit may end inside of, which are then copied."""
        return self.ends_inside_blocks and self.whole_block_tokens > self.alignment


def plan_cache(
    specs: Sequence[KVCacheSpec],
    config: PrefixCacheConfig,
    facts: SchedulerFacts,
    *,
    max_model_len: int,
    max_num_batched_tokens: int,
    enable_caching: bool = True,
    hash_tokens: int | None = None,
    scheduler_block_size: int | None = None,
    interval: int | None = None,
) -> CachePlan:
    """Decide what is in force for groups of these specs, unpacked.

    Args:
        hash_tokens: Tokens per request hash; the granule where nobody hashes yet.
        scheduler_block_size: Alignment asked for by the scheduler, in tokens; hits are aligned to
            it as well, unless they may end inside blocks. By default what ``facts`` say.
        interval: Overrides the retention interval of ``config``.

    Raises:
        ValueError: The interval does not fit the alignment or the model, the model has no window
            to pin, or the hash size does not fit the blocks.
    """
    has_windowed_group = any(map(is_windowed, specs))
    retention = config.retention if interval is None else interval
    if interval is None and config.retention_from_profile and not has_windowed_group:
        retention = None
    is_stock = not (enable_caching and (config.changes_caching or retention is not None))
    ends_inside = enable_caching and config.partial_hits and facts.hits_may_end_inside_blocks
    sizes = Granularity.of(specs, ends_inside_blocks=ends_inside)
    if enable_caching and hash_tokens is not None:
        sizes.check_hash_size(hash_tokens, exact_names=not is_stock)
    alignment = sizes.alignment
    if not ends_inside:
        alignment = lcm(alignment, scheduler_block_size or facts.block_size)
    check_pinning(pin_swa_tokens=config.pin_swa_tokens, has_windowed_group=has_windowed_group)
    return CachePlan(
        specs=tuple(specs),
        config=config,
        facts=facts,
        granule=sizes.granule,
        alignment=alignment,
        whole_block_tokens=lcm(*sizes.block_tokens),
        hash_tokens=hash_tokens or sizes.granule,
        interval=resolve_retention_interval(
            retention, alignment, has_windowed_group=has_windowed_group
        ),
        keeps_fallback=retention == "auto",
        is_stock=is_stock,
        ends_inside_blocks=ends_inside,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        leaves_room_for_loads=not facts.terms.leaves_room_for_loads,
    )


def _check_tail(manager: SingleTypeKVCacheManager, read: KVCacheSpec, alignment: int) -> None:
    """Check that vLLM's managers see the tail of a :func:`tail_spec` as we do."""
    length, block_tokens = tail_length(read), tokens_per_block(read)
    boundary = align_down(length * block_tokens, alignment) + 2 * alignment
    num_blocks = boundary // block_tokens
    mask = manager.reachable_block_mask(
        0, num_blocks, alignment, read, use_eagle=False, retention_interval=boundary
    )
    assert mask == [False] * (num_blocks - length) + [True] * length, "another tail in this vLLM"


def describe_groups(
    managers: Sequence[SingleTypeKVCacheManager], draft_groups: Set[int], plan: CachePlan
) -> Groups:
    """Return one description per group; ``draft_groups`` may hold layers of a draft model."""

    def tails(spec: KVCacheSpec, manager: SingleTypeKVCacheManager) -> dict[str, Any]:
        if plan.is_stock or not is_windowed(spec):
            return {"tail_start": manager.get_num_skipped_tokens}
        read, span = tail_spec(spec, plan.specs, plan.alignment), read_span(spec, plan.specs)
        is_sparse = plan.is_sparse(spec)
        if is_sparse:  # its tables have blocks by our rule, null blocks elsewhere
            _check_tail(manager, read, plan.alignment)
        return {
            "tail_start": span.start,
            "tail_length": tail_length(read),
            "window": spec.sliding_window,
            "held": span if is_sparse else window_span(spec),
        }

    return Groups(
        tuple(
            Group(
                id=GroupId(i),
                manager=manager,
                block_tokens=tokens_per_block(spec),
                is_downward_closed=is_downward_closed(spec),
                is_retained=is_windowed(spec),
                is_read_first=is_compressor_state(spec) or carries_ring(spec),
                is_eagle=i in draft_groups,
                ends_inside=plan.ends_inside_blocks and hits_end_inside(spec, plan.alignment),
                **tails(spec, manager),
            )
            for i, (manager, spec) in enumerate(zip(managers, plan.specs, strict=True))
        )
    )
