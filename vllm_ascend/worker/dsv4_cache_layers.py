# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's cache layers on the NPU, at every block size.

The compressors' state, the indexer's keys and the sliding windows. They hold no tensors of their
own; they say what is to be allocated.
"""

from __future__ import annotations

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.layers.deepseek_compressor import CompressorStateCache
from vllm.model_executor.layers.deepseek_v4_attention import DeepseekV4IndexerCache
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.attention.backends.mla.sparse_swa import DeepseekV4SWACache
from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec, AscendSlidingWindowMLASpec
from vllm_ascend.core.layout import dsv4_layout as layout
from vllm_ascend.core.layout.block_sizes import (
    DEFAULT_DSV4_COMPRESSED_BLOCK_SIZE,
    dsv4_rows_per_block,
)
from vllm_ascend.prefix_cache_config import load_config

_MODEL_VERSION = "deepseek_v4"


def block_sizes_in_force() -> layout.Dsv4BlockSizes:
    """Return the geometry of this device: the configured one, or 128 rows while we are off.

    Raises:
        ValueError: See :func:`dsv4_rows_per_block`.
    """
    config, rows = load_config(), DEFAULT_DSV4_COMPRESSED_BLOCK_SIZE
    if config.apply_dsv4_patch:
        rows = dsv4_rows_per_block(1, config)
    return layout.dsv4_block_sizes(rows, _device())


def _device() -> layout.Dsv4Device:
    try:
        from vllm_ascend.utils import AscendDeviceType, get_ascend_device_type
    except ImportError:  # beside vLLM, not over a checkout: there is no NPU
        return layout.A3
    return layout.A5 if get_ascend_device_type() == AscendDeviceType.A5 else layout.A3


class _OnDsaBackend:
    """A layer whose metadata vllm-ascend's backend builds."""

    def get_attn_backend(self) -> type[AttentionBackend]:
        """Return the backend."""
        from vllm_ascend.attention.dsa_v1 import AscendDSABackend

        return AscendDSABackend


class AscendCompressorStateCache(_OnDsaBackend, CompressorStateCache):
    """The running sums of one compressor.

    Args:
        state_dim: Elements of a row, values and scores.
        dtype: fp32.
        compress_ratio: 4 or 128.
        block_size: What the model asks for at 128 rows per compressed block; the block size in
            force decides.
        prefix: The layer's name.

    Raises:
        ValueError: Dtype or ratio is another one, or the name is taken.
    """

    def __init__(
        self, state_dim: int, dtype: torch.dtype, compress_ratio: int, block_size: int, prefix: str
    ) -> None:
        torch.nn.Module.__init__(self)
        if dtype != torch.float32:
            raise ValueError(f"{prefix}: compressor state is fp32, not {dtype}")
        if compress_ratio not in (layout.C4_RATIO, layout.C128_RATIO):
            raise ValueError(f"{prefix}: compress_ratio ({compress_ratio}) must be 4 or 128")
        context = get_current_vllm_config().compilation_config.static_forward_context
        if prefix in context:
            raise ValueError(f"Duplicate layer name: {prefix}")
        context[prefix] = self
        self.state_dim = state_dim
        self.dtype = dtype
        self.prefix = prefix
        self.kv_cache = torch.tensor([])
        self.compress_ratio = compress_ratio
        self.is_overlapping = compress_ratio == layout.C4_RATIO
        self.sliding_window = compress_ratio * (2 if self.is_overlapping else 1)
        sizes = block_sizes_in_force()
        self.block_size = sizes.c4_state if self.is_overlapping else sizes.c128_state

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """Return the spec: a window over the sums, in pages of the cache that it shares."""
        sizes = block_sizes_in_force()
        of_indexer = self.is_overlapping and self.state_dim == layout.state_size(
            layout.INDEXER_HEAD_SIZE, overlapping=True
        )
        return AscendSlidingWindowMLASpec(
            block_size=self.block_size,
            num_kv_heads=1,
            head_size=self.state_dim,
            dtype=self.dtype,
            sliding_window=self.sliding_window,
            page_size_padded=sizes.indexer_page_bytes if of_indexer else sizes.page_bytes,
        )

    def forward(self) -> None:
        """Compute nothing: the layer only owns a cache."""


class AscendDeepseekV4IndexerCache(_OnDsaBackend, DeepseekV4IndexerCache):
    """The indexer's keys, one scale beside each."""

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """Return the spec: compressed rows of keys."""
        return AscendMLAAttentionSpec(
            block_size=block_sizes_in_force().compressed,
            num_kv_heads=1,
            head_size=self.head_dim,
            dtype=self.dtype,
            model_version=_MODEL_VERSION,
            compress_ratio=self.compress_ratio,
            cache_dtype_str=self.cache_config.cache_dtype,
            scale_dim=1 if self.head_dim == layout.INDEXER_HEAD_SIZE else 0,
            scale_dtype=torch.float32 if _device() is layout.A5 else torch.float16,
        )


class AscendDeepseekV4SWACache(_OnDsaBackend, DeepseekV4SWACache):
    """The rows of a sliding window.

    For the arguments see vLLM's class; ``dtype`` is what is stored.
    """

    def __init__(self, head_dim, window_size, dtype, prefix, cache_config) -> None:
        super().__init__(head_dim, window_size, torch.uint8, prefix, cache_config)
        self.dtype = dtype
        self.block_size = block_sizes_in_force().swa

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """Return the spec: a sliding window of plain rows."""
        return AscendSlidingWindowMLASpec(
            block_size=self.block_size,
            num_kv_heads=1,
            head_size=self.head_dim,
            dtype=self.dtype,
            sliding_window=self.window_size,
            cache_dtype_str=self.cache_config.cache_dtype,
            model_version=_MODEL_VERSION,
        )
