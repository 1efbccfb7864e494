# SPDX-License-Identifier: Apache-2.0
"""The managers of KV cache groups, under the name of vllm-ascend's module."""

from vllm_ascend.core.group_managers import CompressAttentionManager, get_manager_for_kv_cache_spec

__all__ = ["CompressAttentionManager", "get_manager_for_kv_cache_spec"]
