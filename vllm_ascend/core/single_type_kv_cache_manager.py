# SPDX-License-Identifier: Apache-2.0
"""The managers of KV cache groups, under the name of vllm-ascend's module."""

from vllm_ascend.core.group_managers import get_manager_for_kv_cache_spec
from vllm_ascend.row_layout.compress_manager import CompressAttentionManager

__all__ = ["CompressAttentionManager", "get_manager_for_kv_cache_spec"]
