# SPDX-License-Identifier: Apache-2.0
"""The switches of the prefix cache, as values; ``prefix_cache_config`` reads them."""

from __future__ import annotations

from dataclasses import dataclass

DSV4_COMPRESSED_BLOCK_SIZES = (32, 64, 128)


@dataclass(frozen=True)
class PrefixCacheConfig:
    """Every switch of the project, as the environment set it.

    Attributes:
        apply_dsv4_patch: Ascend's DeepSeek-V4 layout and coordinator are on.
        retention: ``None`` (dense, as stock vLLM), ``"auto"``, or an interval in tokens.
        dsv4_compressed_kv_block_size: Rows per compressed block, ``None`` if left to
            ``--block-size``.
        partial_hits: Hits may end inside a compressed block.
        sparse_state: Compressor state holds blocks only for rows that will be read.
        spare_tails: Tails at boundaries not kept stay hittable while their memory is idle.
        eviction: Which kept block is given up first: ``"lru"`` or ``"protect"``.
        pin_swa_tokens: Windows just left in the middle of a prompt are given up last.
        pin_min_drop_size: Blocks that such a move must drop at once, in every windowed group.
        dp_routing: ``"cache"``: requests go to the data-parallel rank that has their prefix;
            ``None``: vLLM chooses.
        admission: ``"cached"``: where memory is short, waiting requests go first that have
            the most of their prompts cached; ``None``: those that came first.
        profile: The profile that the switches above were completed from.
        retention_from_profile: Nobody asked for retention but the profile: where a model has
            nothing to retain, that is no mistake.
    """

    apply_dsv4_patch: bool = False
    retention: int | str | None = None
    dsv4_compressed_kv_block_size: int | None = None
    partial_hits: bool = False
    sparse_state: bool = False
    spare_tails: bool = False
    pin_swa_tokens: bool = False
    pin_min_drop_size: int = 16
    eviction: str = "lru"
    dp_routing: str | None = None
    admission: str = "fcfs"
    profile: str = "stock"
    retention_from_profile: bool = False

    @property
    def remembers_given_up(self) -> bool:
        """Whether it is told that a prompt returns when its blocks have been given up."""
        return self.eviction == "protect" or self.admission == "cached"

    @property
    def changes_caching(self) -> bool:
        """Whether any switch changes what is cached, and so which block is given up first."""
        return (
            self.retention is not None
            or self.partial_hits
            or self.sparse_state
            or self.spare_tails
            or self.eviction != "lru"
            or self.pin_swa_tokens
        )

    @property
    def is_stock(self) -> bool:
        """Whether nothing is switched on: vLLM must behave as if unpatched."""
        return self == PrefixCacheConfig()
