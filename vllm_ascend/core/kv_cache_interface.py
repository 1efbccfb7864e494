# SPDX-License-Identifier: Apache-2.0
"""Ascend's KV cache specs, under the name of vllm-ascend's module, which later releases have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.utils.torch_utils import get_dtype_size
from vllm.v1.kv_cache_interface import SlidingWindowMLASpec

from vllm_ascend.core.stored_in_rows import StoredInRows


@dataclass(frozen=True, kw_only=True)
class AscendSlidingWindowMLASpec(StoredInRows, SlidingWindowMLASpec):
    """Sliding-window rows (attention or compressor state) in plain, unpacked pages."""

    @property
    def real_page_size_bytes(self) -> int:
        """Bytes of a page before padding."""
        return self.block_size * self.num_kv_heads * self.head_size * get_dtype_size(self.dtype)


def __getattr__(name: str) -> Any:
    """Return the spec of compressed rows, which a layout that counts tokens does without."""
    if name != "AscendMLAAttentionSpec":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm_ascend.row_layout.specs import AscendMLAAttentionSpec

    return AscendMLAAttentionSpec
