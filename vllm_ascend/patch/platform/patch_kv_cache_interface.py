# SPDX-License-Identifier: Apache-2.0
"""Ascend's KV cache specs and the configured rows of a compressed block, under upstream's name.

Nothing in vLLM is patched here: the specs are subclasses, and the manager factory resolves them.
Over a vllm-ascend checkout this is the first module of ours that is imported in every process.
"""

from __future__ import annotations

from vllm.config import get_current_vllm_config_or_none

import vllm_ascend.patch.platform.installation  # noqa: F401 - installs the patches
from vllm_ascend.core.block_sizes import dsv4_compressed_block_size
from vllm_ascend.core.kv_cache_interface import (
    AscendMLAAttentionSpec,
    AscendSlidingWindowMLASpec,
)
from vllm_ascend.patch.table import Patch
from vllm_ascend.prefix_cache_config import load_config

__all__ = [
    "PATCHES",
    "AscendMLAAttentionSpec",
    "AscendSlidingWindowMLASpec",
    "get_dsv4_compressed_kv_block_size",
]


def get_dsv4_compressed_kv_block_size(compress_ratio: int) -> int:
    """Return the rows per block of a DeepSeek-V4 group; the same for every ratio.

    Args:
        compress_ratio: Tokens per row: 0 or 1 (sliding window), 4 or 128.

    Raises:
        ValueError: The ratio is none of DeepSeek-V4's, or the configured sizes contradict each
            other.
    """
    if compress_ratio not in (0, 1, 4, 128):
        raise ValueError(f"compress_ratio ({compress_ratio}) must be 0, 1, 4 or 128")
    vllm_config = get_current_vllm_config_or_none()
    cache_config = None if vllm_config is None else vllm_config.cache_config
    return dsv4_compressed_block_size(load_config(), cache_config)


PATCHES: tuple[Patch, ...] = ()
