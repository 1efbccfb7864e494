# SPDX-License-Identifier: Apache-2.0
"""Block sizes in force: the scheduler's alignment, the hash granularity, the configured rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm

from vllm.config import CacheConfig, VllmConfig, get_current_vllm_config_or_none
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec, MambaSpec

from vllm_ascend.core.connectors.connector_rules import allows_partial_hits
from vllm_ascend.core.layout.specs import granule_tokens, group_specs, tokens_per_block
from vllm_ascend.prefix_cache_config import (
    DSV4_COMPRESSED_BLOCK_SIZES,
    PrefixCacheConfig,
)

DEFAULT_DSV4_COMPRESSED_BLOCK_SIZE = 128


@dataclass(frozen=True)
class Granularity:
    """The units of a set of groups, in tokens.

    Attributes:
        block_tokens: Tokens per block of every group.
        granule: The finest unit in which hits can be measured.
        alignment: What hits align to: the granule if they may end inside a compressed block,
            else whole blocks of every group.
    """

    block_tokens: tuple[int, ...]
    granule: int
    alignment: int

    @classmethod
    def of(cls, specs: Sequence[KVCacheSpec], *, ends_inside_blocks: bool) -> Granularity:
        """Return the units of groups with these specs."""
        sizes = tuple(tokens_per_block(spec) for spec in specs)
        granule = granule_tokens(specs)
        return cls(sizes, granule, granule if ends_inside_blocks else lcm(*sizes))

    def check_hash_size(self, hash_tokens: int, *, exact_names: bool) -> None:
        """Check that a request's hashes can name the blocks.

        Args:
            hash_tokens: Tokens per hash.
            exact_names: A hash may cover several small blocks, which it then names by place.

        Raises:
            ValueError: They cannot.
        """

        def fits(size: int) -> bool:
            return size % hash_tokens == 0 or (exact_names and hash_tokens % size == 0)

        if not all(map(fits, self.block_tokens)) or self.alignment % hash_tokens:
            raise ValueError(
                f"hash_block_size ({hash_tokens}) must divide the tokens per block of every "
                f"KV cache group ({list(self.block_tokens)})"
                + (f", or be their multiple and divide {self.alignment}" if exact_names else "")
            )


def resolve_block_sizes(
    kv_cache_config: KVCacheConfig, vllm_config: VllmConfig, config: PrefixCacheConfig
) -> tuple[int, int]:
    """Return (scheduler_block_size, hash_block_size) in tokens for several groups.

    The first is what hits align to, times the context-parallel ranks. The second is
    ``cache_config.hash_block_size``, or else the granule if ``config`` changes what is cached and
    the GCD of the tokens per block if not, or if a KV connector is configured that does not know
    granules: connectors read the hashes of requests and expect that size. It equals the first
    where nothing reads hashes.

    Raises:
        ValueError: The requested hash block size does not divide every group's block.
    """
    specs = group_specs(kv_cache_config)
    has_connector = vllm_config.kv_transfer_config is not None
    expects_stock = not allows_partial_hits(vllm_config.kv_transfer_config)
    ends_inside = config.partial_hits and not expects_stock
    granularity = Granularity.of(specs, ends_inside_blocks=ends_inside)
    parallel = vllm_config.parallel_config
    ranks = parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size
    cache_config = vllm_config.cache_config
    hashed = cache_config.enable_prefix_caching or has_connector
    if ranks > 1 or not hashed:
        whole_blocks = lcm(*granularity.block_tokens) * ranks
        return whole_blocks, whole_blocks
    # Mamba's own bookkeeping names states by vLLM's rule.
    names_granules = (
        config.changes_caching
        and not expects_stock
        and not any(isinstance(spec, MambaSpec) for spec in specs)
    )
    hash_tokens = cache_config.hash_block_size
    if hash_tokens is None:
        sizes = granularity.block_tokens
        hash_tokens = granularity.granule if names_granules else gcd(*sizes)
    granularity.check_hash_size(hash_tokens, exact_names=names_granules)
    return granularity.alignment, hash_tokens


def dsv4_compressed_block_size(config: PrefixCacheConfig, cache_config: CacheConfig | None) -> int:
    """Return the rows of a compressed DeepSeek-V4 block.

    Args:
        config: The project's configuration; its value, if set, decides.
        cache_config: vLLM's, whose explicit ``--block-size`` decides otherwise.

    Raises:
        ValueError: The two contradict each other, or ``--block-size`` is not 32, 64 or 128.
    """
    configured = config.dsv4_compressed_kv_block_size
    explicit = None
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

    Args:
        compress_ratio: Tokens per row: 0 or 1 (sliding window), 4 or 128.
        config: The project's configuration; vLLM's is the one that is being set up, if any.

    Raises:
        ValueError: The ratio is none of DeepSeek-V4's, or the configured sizes contradict each
            other.
    """
    if compress_ratio not in (0, 1, 4, 128):
        raise ValueError(f"compress_ratio ({compress_ratio}) must be 0, 1, 4 or 128")
    vllm_config = get_current_vllm_config_or_none()
    cache_config = None if vllm_config is None else vllm_config.cache_config
    return dsv4_compressed_block_size(config, cache_config)
