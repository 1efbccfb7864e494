# SPDX-License-Identifier: Apache-2.0
"""The most blocks that one request holds at a time, and the memory that takes.

vLLM's check at the start, ``--max-model-len auto``, the logged concurrency, the admission of
requests and the oracle's integrity check all ask here, so none of them can promise what another
does not keep. Counted is what a request cannot do without. Cached blocks that nobody refers to, and
the state that spare tails get for one step, are given up whenever their memory is needed.

Example: compressor state of window 8 in blocks of 8 tokens, steps of 8192 tokens, no drafts::

    dense    tokens [c - 7, c + 8192)              1026 blocks
    sparse   [c - 7, c), five tails, [e - 7, e)    2 + 5 + 2 blocks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from vllm.config import VllmConfig
from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec

from vllm_ascend.core.layout.groups import hits_end_inside, tail_length, tail_spec
from vllm_ascend.core.layout.specs import (
    compress_ratio,
    counts_rows,
    is_downward_closed,
    is_windowed,
    read_span,
    tokens_per_block,
    unpack_uniform,
)
from vllm_ascend.core.plan.cache_plan import CachePlan, plan_cache
from vllm_ascend.core.plan.scheduler_facts import SchedulerFacts, facts_of
from vllm_ascend.core.plan.vllm_terms import VllmTerms
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.core.policy.units import GroupId


@dataclass(frozen=True)
class GroupFootprint:
    """The sizes that decide how many blocks of one group a request holds, in tokens.

    Attributes:
        row_tokens: Tokens per stored row; a row has a place once all of them have.
        window: The group's window; ``None``: all rows stay.
        is_copied: A hit may end inside a block, whose source is held beside the copy for a step.
        blocks_read: The most blocks that a step leaves behind, where only those have a block whose
            rows somebody will read; ``None`` elsewhere.
    """

    block_tokens: int
    row_tokens: int = 1
    window: int | None = None
    is_copied: bool = False
    blocks_read: int | None = None


class RequestFootprint:
    """The most blocks that one request holds in the mode in force.

    Attributes:
        groups: One per KV cache group; ``None`` for kinds that know themselves what they hold
            (Mamba, chunked local attention).
    """

    def __init__(self, plan: CachePlan) -> None:
        self._plan = plan
        self.groups = tuple(_group_footprint(plan, spec) for spec in plan.specs)

    def blocks(
        self, group_id: GroupId, num_tokens: int | None = None, *, may_resume: bool = True
    ) -> int | None:
        """Return the most blocks of one group, however the request is cut into steps.

        ``None`` where the group knows itself.

        Args:
            num_tokens: Tokens of the request, without drafts; the longest one's by default.
            may_resume: It may be preempted and go on: then answers are computed in large steps too.
        """
        group, num_slots = self.groups[group_id], self._plan.max_model_len
        if group is None:
            return None
        num_drafts = self._plan.facts.num_draft_tokens
        if num_tokens is not None:
            num_slots = min(num_tokens + num_drafts, num_slots)
        if group.window is None:
            rows_per_block = group.block_tokens // group.row_tokens
            return cdiv(num_slots // group.row_tokens, rows_per_block) + group.is_copied
        window, block_tokens = group.window - 1, group.block_tokens
        held = blocks_spanned(window + self._tokens_of_step(may_resume=may_resume), block_tokens)
        if group.blocks_read is not None:
            # Small steps leave no holes, so in front of a step the window may be whole: that of
            # the first token that may have to be computed.
            before = blocks_spanned(
                window + self._plan.num_unconfirmed_tokens + num_drafts, block_tokens
            )
            steps = 1 + cdiv(
                self._plan.facts.num_in_flight_tokens, self._plan.max_num_batched_tokens
            )
            held = min(held, before + group.blocks_read * steps)
        return min(held, cdiv(num_slots, block_tokens))

    def _tokens_of_step(self, *, may_resume: bool) -> int:
        """Return the most tokens that a step adds in front of a window, held ones among them."""
        most, drafts = self._plan.max_num_batched_tokens, self._plan.facts.num_draft_tokens
        # Windows are held for a start so much before what counts as computed.
        unconfirmed = self._plan.num_unconfirmed_tokens
        in_flight = self._plan.facts.num_in_flight_tokens
        if may_resume:
            return in_flight + unconfirmed + most + drafts
        # Prompts hold nothing unconfirmed; what follows comes a token and its drafts at a time.
        return in_flight + max(most, unconfirmed + min(1 + drafts, most)) + drafts


def blocks_spanned(num_tokens: int, block_tokens: int) -> int:
    """Return the most blocks that so many consecutive tokens lie in, wherever they start."""
    # All but the first token fill blocks in the best case; the first one ends the block before.
    return cdiv(num_tokens - 1, block_tokens) + 1 if num_tokens > 0 else 0


def _group_footprint(plan: CachePlan, spec: KVCacheSpec) -> GroupFootprint | None:
    if is_downward_closed(spec):
        is_copied = plan.ends_inside_blocks and not plan.is_stock
        return GroupFootprint(
            tokens_per_block(spec),
            row_tokens=compress_ratio(spec) if counts_rows(spec) else 1,
            is_copied=is_copied and hits_end_inside(spec, plan.alignment),
        )
    if not is_windowed(spec):
        return None
    return GroupFootprint(
        tokens_per_block(spec),
        window=spec.sliding_window,
        blocks_read=_blocks_read(plan, spec) if plan.is_sparse(spec) else None,
    )


def _blocks_read(plan: CachePlan, spec: KVCacheSpec) -> int:
    """Return the most blocks of a step that are read later: tails of boundaries, and its end."""
    has_drafts = plan.facts.num_draft_tokens > 0
    # Replay boundary, junction, and where the next turn would resume: with drafts one more. All
    # of them may lie in one step.
    boundaries = 3 + has_drafts + (plan.config.retention == "auto")
    spacing = plan.alignment if plan.tails_interval is None else plan.tails_interval
    if spacing:
        boundaries += cdiv(plan.max_num_batched_tokens, spacing)
    if plan.connector_spares_every:
        boundaries += cdiv(plan.max_num_batched_tokens, plan.connector_spares_every)
    # A tier's hits, and so the junctions that it tells of, end at granules, whatever the alignment.
    closest = plan.granule if plan.facts.has_connector else plan.alignment
    boundaries = min(boundaries, cdiv(plan.max_num_batched_tokens, closest))
    tail_blocks = tail_length(tail_spec(spec, plan.specs, plan.alignment))
    return boundaries * tail_blocks + _end_blocks(plan, spec)


def _end_blocks(plan: CachePlan, spec: KVCacheSpec) -> int:
    """Return the most blocks that hold what is read of a step's end, wherever that lies."""
    start, block_tokens = read_span(spec, plan.specs).start, tokens_per_block(spec)
    unconfirmed, drafts = plan.num_unconfirmed_tokens, plan.facts.num_draft_tokens
    # Both repeat with the window and the block; far from the start, where rows are cut off.
    period = lcm(spec.sliding_window, block_tokens)
    far = period * (2 + cdiv(unconfirmed, period))
    return max(
        cdiv(end + drafts, block_tokens) - start(end - unconfirmed) // block_tokens
        for end in range(far, far + period)
    )


def blocks_of_longest_request(
    vllm_config: VllmConfig,
    groups: Sequence[KVCacheGroupSpec],
    config: PrefixCacheConfig,
    terms: VllmTerms,
) -> int | None:
    """Return the most blocks that a request of ``max_model_len`` tokens holds in all groups.

    ``None`` where no switch changes what is cached: vLLM's own numbers hold. Raises ``ValueError``
    if the retention interval does not fit the layout.
    """
    specs = [unpack_uniform(group.kv_cache_spec) for group in groups]
    # As the coordinator is chosen: without windows vLLM's own is left in charge.
    is_asked = config.changes_caching and any(map(is_windowed, specs))
    if not (is_asked and vllm_config.cache_config.enable_prefix_caching):
        return None
    footprint = RequestFootprint(
        plan_cache(
            specs,
            config,
            SchedulerFacts(**facts_of(vllm_config, config, terms)),
            max_model_len=vllm_config.model_config.max_model_len,
            max_num_batched_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
            interval=terms.retention_option(vllm_config.cache_config),
        )
    )

    num_blocks = 0
    for group_id, spec in enumerate(specs):
        known = footprint.blocks(GroupId(group_id))
        if known is None:
            known = cdiv(spec.max_memory_usage_bytes(vllm_config), spec.page_size_bytes)
        num_blocks += known
    return num_blocks


def max_memory_usage_bytes(
    vllm_config: VllmConfig,
    groups: Sequence[KVCacheGroupSpec],
    config: PrefixCacheConfig,
    terms: VllmTerms,
) -> int | None:
    """Return the bytes of a pool that holds such a request; ``None`` as above."""
    if not groups:
        return None
    num_blocks = blocks_of_longest_request(vllm_config, groups, config, terms)
    if num_blocks is None:
        return None
    # The null block is nobody's.
    num_blocks += not terms.reserves_null_block
    return num_blocks * terms.pool_bytes_per_block(vllm_config, groups)
