# SPDX-License-Identifier: Apache-2.0
"""What several releases share, each part named for what it is. It goes with the last that has it.

Source: vLLM 0.23.0, ``vllm/v1/core``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm_ascend.releases.release import Release

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheSpec
    from vllm.v1.request import Request

UTILS = "vllm.v1.core.kv_cache_utils"
_MANAGERS = "vllm.v1.core.single_type_kv_cache_manager"
_POOL = "vllm.v1.core.block_pool:BlockPool"
_LAYERS = "vllm.model_executor.layers"
DSA = "vllm_ascend.attention.dsa_v1"
DSA_CP = "vllm_ascend.attention.context_parallel.dsa_cp:AscendDSACPMetadataBuilder"
MOONCAKE = "vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_hybrid_connector"
OWN_SPECS = "vllm-ascend imports its spec classes from where it defines them"
OWN_LAYERS = "vllm-ascend's cache layers have blocks of the configured size"
_FRONT = "free_blocks(prepend) is vLLM's own"
_INTERVAL = "cache_blocks(retention_interval) is vLLM's own"
_REACHABLE = "reachable_block_mask is vLLM's own"

# Of later releases; here three functions on the way there are changed.
KERNELS_BY_NAME = {
    "vllm.v1.worker.cpu_model_runner:CPUModelRunner._postprocess_triton": (
        "kernels are looked up by name when they are started"
    ),
}
GROUPED_BY_KIND: Mapping[str, str] = {
    f"{UTILS}:_get_packed_kv_cache_groups": "layers are grouped by kind",
    f"{UTILS}:get_kv_cache_config_from_groups": "its part for DeepSeek-V4 is changed",
}
HANDED_OVER: Mapping[str, str] = {
    f"{MOONCAKE}:MooncakeConnectorScheduler.request_finished_all_groups": (
        "vllm-ascend hands over the prompt's blocks alone"
    ),
}
RETENTION_IN_VLLM: Mapping[str, str] = {
    f"{UTILS}:FreeKVCacheBlockQueue.prepend_n": "prepend_n is vLLM's own",
    f"{_POOL}.scratch_first": _FRONT,
    f"{_POOL}.__init__": _FRONT,
    f"{_POOL}.free_blocks": _FRONT,
    f"{_POOL}.cache_full_blocks": "cache_full_blocks(block_mask) is vLLM's own",
    f"{_MANAGERS}:SingleTypeKVCacheManager.cache_blocks": _INTERVAL,
    f"{_MANAGERS}:MambaManager.cache_blocks": _INTERVAL,
    f"{_MANAGERS}:CrossAttentionManager.cache_blocks": _INTERVAL,
    f"{_MANAGERS}:SingleTypeKVCacheManager.reachable_block_mask": _REACHABLE,
    f"{_MANAGERS}:SlidingWindowManager.reachable_block_mask": _REACHABLE,
    f"{_MANAGERS}:SlidingWindowManager._contiguous_blocks_for_hit": _REACHABLE,
    "vllm.v1.core.kv_cache_manager:KVCacheManager.__init__": (
        "the KV cache manager is told the scheduler's block size"
    ),
    "vllm.v1.engine.core:EngineCore._reset_caches": "it resets the connector as well",
}
SPECS_OF_VLLM_ASCEND: Mapping[str, str] = {
    "vllm.v1.kv_cache_interface:MLAAttentionSpec": OWN_SPECS,
    "vllm.v1.kv_cache_interface:SlidingWindowMLASpec": OWN_SPECS,
    f"{_LAYERS}.attention.mla_attention:MLAAttentionSpec": OWN_SPECS,
    f"{_LAYERS}.deepseek_compressor:CompressorStateCache": OWN_LAYERS,
    f"{_LAYERS}.deepseek_v4_attention:DeepseekV4IndexerCache": OWN_LAYERS,
    "vllm.v1.attention.backends.mla.sparse_swa:DeepseekV4SWACache": OWN_LAYERS,
}


class SpecRegistry(Release):
    """Managers come from a registry by base class, and are told the scheduler's alignment."""

    def chooses_manager(self, spec: KVCacheSpec) -> bool:
        return self.manager_class(spec) is not None

    def manager_class(self, spec: KVCacheSpec) -> type[SingleTypeKVCacheManager] | None:
        from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

        return KVCacheSpecRegistry.get_manager_class(spec)

    def manager_arguments(self, alignment: int) -> dict[str, Any]:
        return {"scheduler_block_size": alignment}


class RoomForPrefills(Release):
    """vLLM lets nothing in that takes the room of a prefill or load under way."""

    leaves_room_for_loads = True

    def forget_prefill(self, scheduler: Scheduler, request: Request) -> None:
        # It would have to leave room for itself before it is let in again.
        scheduler._inflight_prefills.discard(request)
