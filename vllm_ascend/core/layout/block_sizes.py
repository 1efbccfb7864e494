# SPDX-License-Identifier: Apache-2.0
"""Block sizes in force: the scheduler's alignment, the hash granularity, the configured rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm

from vllm.config import CacheConfig, VllmConfig, get_current_vllm_config_or_none
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec, MambaSpec

from vllm_ascend.core.layout.dsv4_layout import C4_RATIO, C128_RATIO
from vllm_ascend.core.layout.specs import granule_tokens, group_specs, tokens_per_block
from vllm_ascend.core.policy.switches import DSV4_COMPRESSED_BLOCK_SIZES, PrefixCacheConfig

DEFAULT_DSV4_COMPRESSED_BLOCK_SIZE = 128


@dataclass(frozen=True)
class Granularity:
    """The units of a set of groups, in tokens."""

    block_tokens: tuple[int, ...]  # per block of every group
    granule: int  # the finest unit in which hits can be measured
    # What hits are multiples of: the granule if they may end inside a compressed block, else whole
    # blocks of every group.
    alignment: int

    @classmethod
    def of(cls, specs: Sequence[KVCacheSpec], *, ends_inside_blocks: bool) -> Granularity:
        """Return the units of groups with these specs."""
        sizes = tuple(tokens_per_block(spec) for spec in specs)
        granule = granule_tokens(specs)
        return cls(sizes, granule, granule if ends_inside_blocks else lcm(*sizes))

    def check_hash_size(self, hash_tokens: int, *, exact_names: bool) -> None:
        """Check that hashes of so many tokens can name the blocks.

        With ``exact_names`` a hash may cover several small blocks, which it names by place.

        Raises:
            ValueError: They cannot.
        """
        names_all = all(
            size % hash_tokens == 0 or (exact_names and hash_tokens % size == 0)
            for size in self.block_tokens
        )
        if not names_all or self.alignment % hash_tokens:
            raise ValueError(
                f"hash_block_size ({hash_tokens}) must divide the tokens per block of every "
                f"KV cache group ({list(self.block_tokens)})"
                + (f", or be their multiple and divide {self.alignment}" if exact_names else "")
            )


def context_parallel_ranks(vllm_config: VllmConfig) -> int:
    """Return over how many ranks the tokens of a request are spread."""
    parallel = vllm_config.parallel_config
    return parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size


def resolve_block_sizes(
    kv_cache_config: KVCacheConfig,
    vllm_config: VllmConfig,
    config: PrefixCacheConfig,
    *,
    hash_tokens: int | None,
    allows_partial_hits: bool,
) -> tuple[int, int]:
    """Return vLLM's (scheduler_block_size, hash_block_size) of several groups, in tokens.

    The first is what hits align to, times the context-parallel ranks. The second is the configured
    one, or else the granule if ``config`` changes what is cached, or else the GCD of the tokens per
    block. It equals the first where nothing reads hashes.

    Args:
        hash_tokens: The configured tokens per hash, if any.
        allows_partial_hits: No connector is there that cannot cope with hits inside a block.

    Raises:
        ValueError: The requested hash block size does not divide every group's block.
    """
    specs, cache_config = group_specs(kv_cache_config), vllm_config.cache_config
    # A connector reads the hashes of requests, and expects stock vLLM's unless it says otherwise.
    expects_stock = not allows_partial_hits
    ends_inside = config.partial_hits and not expects_stock
    granularity = Granularity.of(specs, ends_inside_blocks=ends_inside)
    ranks = context_parallel_ranks(vllm_config)
    is_hashed = cache_config.enable_prefix_caching or vllm_config.kv_transfer_config is not None
    if ranks > 1 or not is_hashed:
        whole_block_tokens = lcm(*granularity.block_tokens) * ranks
        return whole_block_tokens, whole_block_tokens
    # Mamba's own bookkeeping names states by vLLM's rule.
    has_mamba = any(isinstance(spec, MambaSpec) for spec in specs)
    names_granules = config.changes_caching and not expects_stock and not has_mamba
    if hash_tokens is None:
        hash_tokens = granularity.granule if names_granules else gcd(*granularity.block_tokens)
    granularity.check_hash_size(hash_tokens, exact_names=names_granules)
    return granularity.alignment, hash_tokens


def dsv4_compressed_block_size(config: PrefixCacheConfig, cache_config: CacheConfig | None) -> int:
    """Return the rows of a compressed DeepSeek-V4 block: ``config``'s, or vLLM's ``--block-size``.

    Raises:
        ValueError: The two contradict each other, or ``--block-size`` is not 32, 64 or 128.
    """
    configured, explicit = config.dsv4_compressed_kv_block_size, None
    if cache_config is not None and cache_config.user_specified_block_size:
        explicit = cache_config.block_size
    if configured is not None and explicit is not None and configured != explicit:
        raise ValueError(
            f"VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE={configured} contradicts --block-size "
            f"{explicit}: set one of them, or both alike"
        )
    rows = configured or explicit or DEFAULT_DSV4_COMPRESSED_BLOCK_SIZE
    if rows not in DSV4_COMPRESSED_BLOCK_SIZES:
        raise ValueError(f"--block-size {rows} is invalid for DeepSeek-V4: allowed are 32, 64, 128")
    return rows


def dsv4_rows_per_block(compress_ratio: int, config: PrefixCacheConfig) -> int:
    """Return the rows per block of a DeepSeek-V4 group; the same for every ratio.

    Raises:
        ValueError: The ratio is not 0 or 1 (sliding window), 4 or 128 tokens per row, or the
            configured sizes contradict each other.
    """
    if compress_ratio not in (0, 1, C4_RATIO, C128_RATIO):
        raise ValueError(f"compress_ratio ({compress_ratio}) must be 0, 1, 4 or 128")
    cache_config = getattr(get_current_vllm_config_or_none(), "cache_config", None)
    return dsv4_compressed_block_size(config, cache_config)
