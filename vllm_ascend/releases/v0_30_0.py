# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.30.0 with vllm-ascend 0.30.0rc2: block copies and block sizes in tokens are upstream's.

Sources: vLLM 0.30.0, ``vllm/v1/core``; vllm-ascend 0.30.0rc2,
``patch/platform/patch_kv_cache_utils.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from vllm_ascend.releases import shared
from vllm_ascend.releases.release import Digests
from vllm_ascend.releases.shared import (
    BlocksOfTokens,
    LeavesLoadsUnzeroed,
    RoomForPrefills,
    SpecRegistry,
)

# Where there are two, the second is what vllm-ascend has put in vLLM's place before us.
_DIGESTS: dict[str, dict[str, Digests]] = {
    "vllm.config.vllm": {"VllmConfig.validate_block_size": "ab1070875739f68a"},
    "vllm.engine.arg_utils": {"EngineArgs.create_engine_config": "4abf2918f996f2b3"},
    "vllm.platforms.cpu": {"CpuPlatform.check_and_update_config": "d3b8eeeca04a466e"},
    "vllm.v1.core.kv_cache_coordinator": {
        "get_kv_cache_coordinator": ("9d447e2c6d7417ac", "3d637d512d3c842d"),
    },
    "vllm.v1.core.kv_cache_manager": {
        "KVCacheManager.__init__": "a615118476bb3877",
        "KVCacheManager.get_computed_blocks": "82a9a73aa4fee0eb",
    },
    "vllm.v1.core.kv_cache_utils": {
        "_get_packed_kv_cache_groups": "99ba264065f8bfd8",
        "_max_memory_usage_bytes_from_groups": ("115a69462b91792f", "65523e37e1ac543c"),
        "_pool_bytes_per_block": "ef881d0c1cfd1d62",
        "generate_block_hash_extra_keys": "e09249e0ccb5e5d8",
        "get_kv_cache_config_from_groups": "1929046433606745",
        "get_kv_cache_configs": "fe57f6819d0de9ac",
        "get_max_concurrency_for_kv_cache_config": "ce3eba1170110e93",
        "get_request_block_hasher": "ff5d1cc37d9cc4c0",
        "resolve_kv_cache_block_sizes": ("df26757bf9b84a04", "486b8203b2e7ef31"),
    },
    "vllm.v1.core.sched.scheduler": {
        "Scheduler.__init__": "e5ee05610823e29b",
        "Scheduler._handle_invalid_blocks": "e42aa17d64fcda2a",
        "Scheduler._preempt_request": "03bd3a3d62fb5c8c",
        "Scheduler._select_waiting_queue_for_scheduling": "70bfb3b443725109",
        "Scheduler._update_after_schedule": "9212a319a9234677",
        "Scheduler._update_request_as_session": "dde031ff38979b1b",
        "Scheduler.make_stats": "0733d7fcdc580707",
        "Scheduler.reset_prefix_cache": "fe3b2977fe48ad87",
        "Scheduler.update_from_output": "676eb54028d57b97",
        "Scheduler.schedule": "23146d5ff34a8771",
        "Scheduler.add_request": "5eafa1332aaa763a",
        "Scheduler.has_finished_requests": "e00bf16dca545bcb",
    },
    "vllm.v1.core.single_type_kv_cache_manager": {
        "get_manager_for_kv_cache_spec": "351638a07099f70b",
    },
    "vllm.v1.engine.core": {
        "EngineCore._initialize_kv_caches": "c82cf5e45e1dd3fb",
        "EngineCore.step": "efdd78ac3afb578a",
        "EngineCore.step_with_batch_queue": "8b3973c220e753ab",
        "EngineCoreProc._handle_client_request": "c1a96ed013195dfa",
    },
    "vllm.v1.engine.core_client": {
        "DPAsyncMPClient.__init__": "87c1ce113ff1461b",
        "DPAsyncMPClient.add_request_async": "824f4df2c45ab358",
        "DPLBAsyncMPClient.abort_requests_async": "b3c3040ffbcc5920",
        "DPLBAsyncMPClient.get_core_engine_for_request": "4118c66eb546fad1",
        "DPLBAsyncMPClient.process_engine_outputs": "3537d6283927396a",
    },
    "vllm.v1.metrics.loggers": {"StatLoggerManager.__init__": "47afa5278ef89cb8"},
    "vllm.v1.worker.cpu_model_runner": {"CPUModelRunner._postprocess_triton": "6dd2dd2b56cc7bbd"},
    shared.MOONCAKE: {
        "KVCacheRecvingThread.__init__": "65987d6d66ae0ec4",
        "KVCacheRecvingThread._get_remote_socket": "11db8b6fc233fe22",
        "KVCacheRecvingThread._transfer_kv_cache": "5b89732432c7d961",
        "KVCacheRecvingThread._transfer_kv_cache_all_groups": "70c3a2c7496246c7",
        "KVCacheSendingThread.__init__": "423490595d9d3414",
        "KVCacheSendingThread.run_busy_loop": "7e0f91a3e3b52b6d",
        "MooncakeConnectorWorker.register_kv_caches": "042dc41a360f70f8",
    },
    "vllm_ascend.utils": {"refresh_block_size": "86a0272bff9efe4c"},
    "vllm_ascend.worker.block_table": {"BlockTable.move_row": "15f399eb0460010d"},
}
_OWN_MODELS = "vllm-ascend's serves models that ours does not know"
_OWN_TABLES = "vllm-ascend's tables count tokens"
_OWN_SIZES = "vllm-ascend's model and kernels have blocks of the configured size"
_STATE_SPEC = (
    "vllm_ascend.models.deepseek_v4.compressor:AscendCompressorStateCache.get_kv_cache_spec"
)


class Vllm0300(BlocksOfTokens, SpecRegistry, RoomForPrefills, LeavesLoadsUnzeroed):
    """Tokens in flight are counted, hits are touched before anything is allocated."""

    vllm = "0.30.0"
    vllm_ascend = "0.30.0rc2"
    extended: ClassVar[Mapping[str, tuple[str, str]]] = {
        "core/single_type_kv_cache_manager.py": (
            "from vllm_ascend.core.group_managers import get_manager_for_kv_cache_spec",
            "The name of our managers' factory, behind vllm-ascend's own managers.",
        ),
        "patch/platform/__init__.py": (
            "import vllm_ascend.patch.platform.installation",
            "Installs our patches behind vllm-ascend's own.",
        ),
    }
    left_out: ClassVar[Mapping[str, str]] = {
        "core/kv_cache_interface.py": shared.OWN_SPECS,
        "core/single_type_kv_cache_manager.py": "vllm-ascend's has managers of other models",
        "patch/platform/patch_kv_cache_coordinator.py": _OWN_MODELS,
        "patch/platform/patch_kv_cache_interface.py": shared.OWN_SPECS,
        "patch/platform/patch_kv_cache_utils.py": _OWN_MODELS,
        "patch/worker/patch_deepseek_compressor.py": shared.OWN_LAYERS,
        "worker/block_table.py": _OWN_TABLES,
        "worker/dsv4_cache_layers.py": shared.OWN_LAYERS,
    }
    pooled_states: ClassVar[Mapping[str, str]] = {
        _STATE_SPEC: "AscendSlidingWindowMLASpec",
    }
    needed_functions: ClassVar[tuple[str, ...]] = (
        _STATE_SPEC,
        "vllm_ascend.patch.platform.patch_pp_mtp:_patch_scheduler_update_after_schedule",
        "vllm_ascend.patch.platform.patch_pp_mtp:_patch_scheduler_update_from_output",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._update_states",
        "vllm_ascend.worker.utils:copy_kv_cache_blocks_inplace",
    )
    left_to_wrappers: ClassVar[Mapping[str, str]] = {
        "vllm.v1.core.kv_cache_utils:_get_packed_kv_cache_groups": "36fa5ecdd0e4d7a6",
        "vllm.v1.core.kv_cache_utils:_pool_bytes_per_block": "76c2948fea84a2ef",
        "vllm.v1.core.kv_cache_utils:get_kv_cache_config_from_groups": "9f7a88d9eca00197",
    }
    wrappers: ClassVar[frozenset[str]] = frozenset({"vllm_ascend.patch.platform.patch_pp_mtp"})
    digests: ClassVar[Mapping[str, Mapping[str, Digests]]] = _DIGESTS
    native: ClassVar[Mapping[str, str]] = {
        **shared.RETENTION_IN_VLLM,
        **shared.SPECS_OF_VLLM_ASCEND,
        **shared.GROUPED_IN_PACKS,
        **shared.COPIES_IN_VLLM,
        **shared.HANDED_OVER,
        "vllm_ascend.models.layer.attention.layer:DSAAttention.get_kv_cache_spec": _OWN_SIZES,
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._allocate_kv_cache_tensors": (
            shared.COPIES
        ),
        f"{shared.DSA}:AscendDSABackend.get_supported_kernel_block_sizes": _OWN_SIZES,
        f"{shared.DSA}:AscendDSAMetadataBuilder.build": _OWN_SIZES,
        f"{shared.DSA}:AscendDSAMetadataBuilder.build_for_drafting": _OWN_SIZES,
        f"{shared.DSA_CP}.build": _OWN_SIZES,
        f"{shared.DSA_CP}.build_for_drafting": _OWN_SIZES,
    }
    absent: ClassVar[Mapping[str, str]] = {
        f"{shared.DSA}:AscendDSAMetadataBuilder.build_prefill_metadata": _OWN_TABLES,
        f"{shared.DSA}:AscendDSAMetadataBuilder.build_decode_metadata": _OWN_TABLES,
        f"{shared.DSA_CP}.build_req_metadata": _OWN_TABLES,
    }
