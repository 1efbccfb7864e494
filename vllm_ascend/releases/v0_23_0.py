# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.23.0 with vllm-ascend 0.23.0: retention, block masks and a registry of specs are vLLM's.

Source: vLLM 0.23.0, ``vllm/v1/core``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_ascend.deployment import is_over_checkout
from vllm_ascend.releases import shared
from vllm_ascend.releases.blocks_of_rows import BlocksOfRows
from vllm_ascend.releases.release import Digests
from vllm_ascend.releases.shared import RoomForPrefills, SpecRegistry

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request

_DIGESTS: dict[str, dict[str, Digests]] = {
    "vllm.config.vllm": {"VllmConfig.validate_block_size": "bba556e36732453c"},
    "vllm.engine.arg_utils": {"EngineArgs.create_engine_config": "86ec050fe2cc7dc5"},
    "vllm.platforms.cpu": {"CpuPlatform.check_and_update_config": "477b8a55547e9970"},
    "vllm.utils.cpu_triton_utils": {"_FuncWrapper.__getitem__": "3c1212f844725ffe"},
    "vllm.v1.core.kv_cache_coordinator": {"get_kv_cache_coordinator": "9d96b12b65c9e5eb"},
    "vllm.v1.core.kv_cache_manager": {
        "KVCacheManager.__init__": "46aa7163c63a1065",
        "KVCacheManager.get_computed_blocks": "431438b9b2e3914e",
    },
    "vllm.v1.core.kv_cache_utils": {
        "_get_kv_cache_config_deepseek_v4": "2f97120b39778001",
        "_get_kv_cache_groups_uniform_groups": "0f2f756047c2ea7e",
        "_max_memory_usage_bytes_from_groups": "0cfd47cdf5065319",
        "_pool_bytes_per_block": "c0fc2f51420d4826",
        "generate_block_hash_extra_keys": "e09249e0ccb5e5d8",
        "get_kv_cache_configs": "195608929b99ab19",
        "get_max_concurrency_for_kv_cache_config": "d65ca5af2b5d6465",
        "get_request_block_hasher": "b0287304e716cfd9",
        "group_and_unify_kv_cache_specs": "0c5b3282a749ff8e",
        "resolve_kv_cache_block_sizes": "8d94b0117a0fa0f1",
    },
    "vllm.v1.core.sched.scheduler": {
        "Scheduler.__init__": "6009a42348b7ba0b",
        "Scheduler._handle_invalid_blocks": "e42aa17d64fcda2a",
        "Scheduler._preempt_request": "0371740100512344",
        "Scheduler._select_waiting_queue_for_scheduling": "70bfb3b443725109",
        "Scheduler._update_after_schedule": "9eca2462fda8bf5f",
        "Scheduler._update_request_as_session": "dde031ff38979b1b",
        "Scheduler.make_stats": "c495855b2fac9c07",
        "Scheduler.reset_prefix_cache": "d070ee5c068f34da",
        "Scheduler.update_from_output": "dae72be240168961",
        "Scheduler.schedule": "31fce14a6b23f64f",
        "Scheduler.add_request": "2de9d40ec111b709",
        "Scheduler.has_finished_requests": "e00bf16dca545bcb",
    },
    "vllm.v1.core.single_type_kv_cache_manager": {
        "get_manager_for_kv_cache_spec": "648faa3c6a298607",
    },
    "vllm.v1.engine.core": {
        "EngineCore._initialize_kv_caches": "5328e919fce71e46",
        "EngineCore.step": "3bdcb3b9e7445988",
        "EngineCore.step_with_batch_queue": "db8353238de963e3",
        "EngineCoreProc._handle_client_request": "c1a96ed013195dfa",
    },
    "vllm.v1.engine.core_client": {
        "DPAsyncMPClient.__init__": "68e4a674b012e5c1",
        "DPAsyncMPClient.add_request_async": "824f4df2c45ab358",
        "DPLBAsyncMPClient.abort_requests_async": "b3c3040ffbcc5920",
        "DPLBAsyncMPClient.get_core_engine_for_request": "9d09d21116b534d6",
        "DPLBAsyncMPClient.process_engine_outputs": "fdc890c2cb339454",
    },
    "vllm.v1.metrics.loggers": {"StatLoggerManager.__init__": "47afa5278ef89cb8"},
    "vllm.v1.worker.gpu_model_runner": {
        "GPUModelRunner._allocate_kv_cache_tensors": "3003a8fcfa3ceb69",
        "GPUModelRunner._update_states": "ce253f27a1dd2bb6",
        "GPUModelRunner.may_reinitialize_input_batch": "97434df83fdcb72b",
    },
    "vllm.v1.worker.worker_base": {"WorkerWrapperBase.execute_model": "beb33a0813e85b30"},
    "vllm_ascend.attention.context_parallel.dsa_cp": {
        "AscendDSACPMetadataBuilder.build": "2986891210fd6cde",
    },
    "vllm_ascend.attention.dsa_v1": {"AscendDSAMetadataBuilder.build": "a326e41cfeb82072"},
    "vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_hybrid_connector": {
        "KVCacheRecvingThread.__init__": "0dae09a2870e18ca",
        "KVCacheRecvingThread._get_remote_socket": "11db8b6fc233fe22",
        "KVCacheRecvingThread._transfer_kv_cache": "5b89732432c7d961",
        "KVCacheRecvingThread._transfer_kv_cache_all_groups": "85d046881c79616c",
        "KVCacheSendingThread.__init__": "8772fc7217712f7c",
        "KVCacheSendingThread.run_busy_loop": "7e0f91a3e3b52b6d",
        "MooncakeConnectorWorker.register_kv_caches": "5c83e7d3834a5512",
    },
    "vllm_ascend.utils": {"refresh_block_size": "6ac7fb4ec557b8b7"},
    "vllm_ascend.worker.block_table": {"BlockTable.move_row": "15f399eb0460010d"},
    "vllm_ascend.worker.model_runner_v1": {
        "NPUModelRunner._allocate_kv_cache_tensors": "ccbc23ebbf4c713d",
    },
}
_OWN_DRAFTS = "vllm-ascend looks drafts up in blocks of their own group"
_OWN_SIZES = "vllm-ascend's kernels are told of every block size"
_WHOLE_TABLES = "state tables are whole: a kernel finds rows by a request's real positions"


class Vllm0230(BlocksOfRows, SpecRegistry, RoomForPrefills):
    """Retention is vLLM's own; vllm-ascend counts tokens in flight."""

    vllm = "0.23.0"
    vllm_ascend = "0.23.0"
    reads_retention_variable = True
    replaced: ClassVar[frozenset[str]] = frozenset(
        {
            "core/single_type_kv_cache_manager.py",
            "patch/platform/patch_kv_cache_coordinator.py",
            "patch/platform/patch_kv_cache_utils.py",
        }
    )
    left_out: ClassVar[Mapping[str, str]] = {
        "core/kv_cache_interface.py": shared.OWN_SPECS,
        "patch/platform/patch_kv_cache_interface.py": shared.OWN_SPECS,
        "patch/worker/patch_deepseek_compressor.py": shared.OWN_LAYERS,
        "worker/block_table.py": "vllm-ascend's tables know compressed groups",
        "worker/dsv4_cache_layers.py": shared.OWN_LAYERS,
    }
    hooks: ClassVar[Mapping[str, str]] = {
        "patch/platform/__init__.py": "vllm_ascend.patch.platform.patch_kv_cache_utils",
    }
    digests: ClassVar[Mapping[str, Mapping[str, Digests]]] = _DIGESTS
    native: ClassVar[Mapping[str, str]] = {
        **shared.GROUPED_BY_KIND,
        **shared.KERNELS_BY_NAME,
        **shared.RETENTION_IN_VLLM,
        **shared.SPECS_OF_VLLM_ASCEND,
        "vllm_ascend.models.layer.attention.layer:DSAAttention.get_kv_cache_spec": (
            shared.OWN_LAYERS
        ),
        f"{shared.DSA}:AscendDSABackend.get_supported_kernel_block_sizes": _OWN_SIZES,
        f"{shared.DSA}:AscendDSAMetadataBuilder.build_for_drafting": _OWN_DRAFTS,
        f"{shared.DSA_CP}.build_for_drafting": _OWN_DRAFTS,
        **shared.HANDED_OVER,
    }
    absent: ClassVar[Mapping[str, str]] = {
        f"{shared.DSA}:AscendDSAMetadataBuilder.build_prefill_metadata": _WHOLE_TABLES,
        f"{shared.DSA}:AscendDSAMetadataBuilder.build_decode_metadata": _WHOLE_TABLES,
        f"{shared.DSA_CP}.build_req_metadata": _WHOLE_TABLES,
    }

    def uses_second_model_runner(self, vllm_config: VllmConfig) -> bool:
        return bool(vllm_config.use_v2_model_runner)

    def discard_next_output(self, request: Request) -> None:
        request.async_tokens_to_discard = 1  # outputs of whole steps, whatever its name says

    def draft_event_metadata(self, num_groups: int) -> tuple[tuple[str | None, int | None], ...]:
        # It warns of every event of a group that it does not find.
        return ((None, None),) * num_groups

    def max_in_flight_tokens(self, vllm_config: VllmConfig) -> int:
        # vllm-ascend's patch_async_swa_kv_lifetime; vLLM alone gives windows back at once.
        if not is_over_checkout():
            return 0
        steps = vllm_config.max_concurrent_batches - 1  # -1: the step that is being scheduled
        return steps * vllm_config.scheduler_config.max_num_batched_tokens

    def coordinator_attributes(
        self, alignment: int, interval: int | None, block_tokens: Sequence[int]
    ) -> dict[str, Any]:
        return {"scheduler_block_size": alignment, "retention_interval": interval}

    def in_flight_tokens(self, request: Request) -> int:
        return max(getattr(request, "num_in_flight_tokens", 0), 0)  # counted by the same patch
