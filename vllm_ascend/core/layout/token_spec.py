# SPDX-License-Identifier: Apache-2.0
"""Ascend's spec of compressed rows where ``block_size`` counts tokens."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.v1.kv_cache_interface import MLAAttentionSpec


@dataclass(frozen=True, kw_only=True)
class AscendMLATokenSpec(MLAAttentionSpec):
    """MLA rows in blocks that are measured in tokens, as vLLM's own.

    The class says whose layout it is. Source: vllm-ascend 0.30.0rc2
    ``DSAAttention.get_kv_cache_spec``.
    """
