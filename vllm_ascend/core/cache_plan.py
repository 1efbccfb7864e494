# SPDX-License-Identifier: Apache-2.0
"""What is in force for one engine's prefix cache: decided once, before a block is handed out.

The coordinator and its parts, the checks at the start and the line that operators read are all
given this, so none of them can believe something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.layout.block_sizes import Granularity
from vllm_ascend.core.layout.specs import is_compressor_state, is_windowed
from vllm_ascend.core.retention.boundaries import resolve_retention_interval
from vllm_ascend.core.retention.pinning import check_pinning
from vllm_ascend.core.scheduler_facts import SchedulerFacts
from vllm_ascend.prefix_cache_config import PrefixCacheConfig


@dataclass(frozen=True)
class CachePlan:
    """What is in force.

    Attributes:
        specs: The unpacked spec of every KV cache group.
        granule: The finest unit in which hits can be measured, in tokens.
        alignment: Hits are multiples of this, in tokens.
        whole_blocks: Hits at multiples of this end inside no block, in tokens.
        hash_tokens: Tokens per request hash.
        interval: Tokens between boundaries that are kept; ``None``: all of them are.
        keeps_fallback: A boundary shortly before the replay boundary is kept as well.
        is_stock: No switch changes what is cached: everything is as in stock vLLM.
        ends_inside_blocks: Hits may end inside blocks of compressed rows, which are then copied.
        max_num_batched_tokens: Tokens of one step.
    """

    specs: tuple[KVCacheSpec, ...]
    config: PrefixCacheConfig
    facts: SchedulerFacts
    granule: int
    alignment: int
    whole_blocks: int
    hash_tokens: int
    interval: int | None
    keeps_fallback: bool
    is_stock: bool
    ends_inside_blocks: bool
    max_num_batched_tokens: int
    max_model_len: int

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
        """A step may start so much before, or commit so much behind, what counts as computed.

        Drafts of the step in flight may be rejected, and those of one step pass a boundary
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
        # A connector may hand on any block of a table, also one that nobody here would have read.
        return is_ascend_state and not self.facts.has_connector

    @property
    def copies_blocks(self) -> bool:
        """Whether some group has blocks that a hit may end inside of, which are then copied."""
        return self.ends_inside_blocks and self.whole_blocks > self.alignment


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
        whole_blocks=lcm(*sizes.block_tokens),
        hash_tokens=hash_tokens or sizes.granule,
        interval=resolve_retention_interval(
            retention, alignment, has_windowed_group=has_windowed_group
        ),
        keeps_fallback=retention == "auto",
        is_stock=is_stock,
        ends_inside_blocks=ends_inside,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
    )
