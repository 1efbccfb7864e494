# SPDX-License-Identifier: Apache-2.0
"""Ascend's spec of compressed rows: ``block_size`` counts stored rows, not tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.config import VllmConfig
from vllm.utils.math_utils import cdiv
from vllm.utils.torch_utils import get_dtype_size
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from vllm_ascend.core.stored_in_rows import StoredInRows


@dataclass(frozen=True, kw_only=True)
class AscendMLAAttentionSpec(StoredInRows, MLAAttentionSpec):
    """MLA rows as Ascend stores them: ``block_size`` rows, each for ``compress_ratio`` tokens."""

    scale_dim: int = 0  # scales stored beside every row (the indexer has one)
    scale_dtype: torch.dtype = torch.int8
    # Sparse attention without compression: elements of (latent, rope, indexer key), in one page.
    sparse_head_dim: tuple[int, ...] | None = None
    cache_sparse_c8: bool = False  # the indexer key has one scale per row; their types:
    c8_k_cache_dtype: torch.dtype = torch.int8
    c8_k_scale_cache_dtype: torch.dtype = torch.float16

    @property
    def real_page_size_bytes(self) -> int:
        """Bytes of a page before padding."""
        return self.block_size * self.num_kv_heads * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        if self.cache_sparse_c8:
            return sum(self._sparse_part_bytes())
        scale_bytes = self.scale_dim * get_dtype_size(self.scale_dtype)
        return self.head_size * get_dtype_size(self.dtype) + scale_bytes

    def _sparse_part_bytes(self) -> tuple[int, int, int, int]:
        """Bytes of a row's latent, rope, quantised indexer key and its scale."""
        assert self.sparse_head_dim is not None and len(self.sparse_head_dim) == 3
        latent, rope, indexer_key = self.sparse_head_dim
        element = get_dtype_size(self.dtype)
        return (
            latent * element,
            rope * element,
            indexer_key * get_dtype_size(self.c8_k_cache_dtype),
            get_dtype_size(self.c8_k_scale_cache_dtype),
        )

    @property
    def sparse_kv_cache_ratio(self) -> tuple[float, float, float, float | None]:
        """How many times each part of a sparse row fits into the whole row, in bytes.

        The fourth part, the indexer key's scale, is ``None`` unless ``cache_sparse_c8``.
        """
        assert self.sparse_head_dim is not None
        if self.cache_sparse_c8:
            parts = self._sparse_part_bytes()
            latent, rope, key, scale = (sum(parts) / part for part in parts)
            return latent, rope, key, scale
        latent, rope, key = (self.head_size / part for part in self.sparse_head_dim)
        return latent, rope, key, None

    def max_memory_usage_bytes(self, vllm_config: VllmConfig) -> int:
        """Bytes that one request of ``max_model_len`` tokens holds on this rank."""
        parallel = vllm_config.parallel_config
        ranks = parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size
        local_tokens = cdiv(vllm_config.model_config.max_model_len, ranks)
        return cdiv(local_tokens, self.block_size * self.compress_ratio) * self.page_size_bytes
