# SPDX-License-Identifier: Apache-2.0
"""Ascend's KV cache specs and the configured rows of a compressed block, under upstream's name.

Nothing in vLLM is patched here: the specs are subclasses, and the manager factory resolves them.
Over a vllm-ascend checkout this is the first module of ours that is imported in every process.
"""

from __future__ import annotations

import vllm_ascend.patch.platform.installation  # noqa: F401 - installs the patches
from vllm_ascend.core.kv_cache_interface import (
    AscendMLAAttentionSpec,
    AscendSlidingWindowMLASpec,
)
from vllm_ascend.core.layout.block_sizes import dsv4_rows_per_block
from vllm_ascend.patch.table import Patch
from vllm_ascend.prefix_cache_config import load_config

__all__ = [
    "PATCHES",
    "AscendMLAAttentionSpec",
    "AscendSlidingWindowMLASpec",
    "get_dsv4_compressed_kv_block_size",
]

PATCHES: tuple[Patch, ...] = ()


def get_dsv4_compressed_kv_block_size(compress_ratio: int) -> int:
    """Return the rows per block; see :func:`dsv4_rows_per_block` for argument and errors."""
    return dsv4_rows_per_block(compress_ratio, load_config())
