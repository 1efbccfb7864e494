# SPDX-License-Identifier: Apache-2.0
"""Block sizes in force: the scheduler's alignment, the hash granularity, the configured rows."""

from __future__ import annotations

from math import gcd, lcm

from vllm.config import CacheConfig, VllmConfig
from vllm.v1.kv_cache_interface import KVCacheConfig

from vllm_ascend.core.specs import group_specs, tokens_per_block
from vllm_ascend.envs import DSV4_COMPRESSED_BLOCK_SIZES, AscendConfig

DEFAULT_DSV4_COMPRESSED_BLOCK_SIZE = 128


def resolve_block_sizes(kv_cache_config: KVCacheConfig, vllm_config: VllmConfig) -> tuple[int, int]:
    """Return (scheduler_block_size, hash_block_size) in tokens for several groups.

    The first is the LCM of the tokens per block over all groups, times the context-parallel
    ranks: what hits align to. The second is their GCD, or ``cache_config.hash_block_size``; it
    equals the first where nothing reads hashes.

    Raises:
        ValueError: The requested hash block size does not divide every group's block.
    """
    sizes = [tokens_per_block(spec) for spec in group_specs(kv_cache_config)]
    parallel = vllm_config.parallel_config
    ranks = parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size
    scheduler_block_size = lcm(*sizes) * ranks
    cache_config = vllm_config.cache_config
    hashed = cache_config.enable_prefix_caching or vllm_config.kv_transfer_config is not None
    if ranks > 1 or not hashed:
        return scheduler_block_size, scheduler_block_size
    hash_block_size = cache_config.hash_block_size or gcd(*sizes)
    if any(size % hash_block_size for size in sizes):
        raise ValueError(
            f"hash_block_size ({hash_block_size}) must divide the tokens per block of every KV "
            f"cache group ({sizes})"
        )
    return scheduler_block_size, hash_block_size


def dsv4_compressed_block_size(config: AscendConfig, cache_config: CacheConfig | None) -> int:
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
