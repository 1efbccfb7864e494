# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.20.2 with vllm-ascend 0.20.2rc: what the cure was first written for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_ascend.releases.blocks_of_rows import BlocksOfRows
from vllm_ascend.releases.release import Digests
from vllm_ascend.releases.shared import GROUPED_BY_KIND, KERNELS_BY_NAME

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheSpec
    from vllm.v1.request import Request

# Several where the supported heads of vllm-ascend differ.
_DIGESTS: dict[str, dict[str, Digests]] = {
    "vllm.config.vllm": {"VllmConfig.validate_block_size": "26fa756645861e89"},
    "vllm.engine.arg_utils": {"EngineArgs.create_engine_config": "2d98eee50b6b3712"},
    "vllm.model_executor.layers.attention.mla_attention": {"MLAAttentionSpec": "9f27c636faca79dd"},
    "vllm.model_executor.layers.deepseek_compressor": {"CompressorStateCache": "45ea159e430356cc"},
    "vllm.model_executor.layers.deepseek_v4_attention": {
        "DeepseekV4IndexerCache": "254a03d8c53b1499",
    },
    "vllm.platforms.cpu": {"CpuPlatform.check_and_update_config": "2bef0c2ad9447eb7"},
    "vllm.utils.cpu_triton_utils": {"_FuncWrapper.__getitem__": "3c1212f844725ffe"},
    "vllm.v1.attention.backends.mla.sparse_swa": {"DeepseekV4SWACache": "f22a62f8b5ab6d15"},
    "vllm.v1.core.block_pool": {
        "BlockPool.__init__": "14448f29d974b6ac",
        "BlockPool.cache_full_blocks": "79508f70207306db",
        "BlockPool.free_blocks": "725bca2874bfa3e2",
    },
    "vllm.v1.core.kv_cache_coordinator": {"get_kv_cache_coordinator": "3eb560f5836a5026"},
    "vllm.v1.core.kv_cache_manager": {
        "KVCacheManager.__init__": "bf8b98366d9722c8",
        "KVCacheManager.get_computed_blocks": "431438b9b2e3914e",
    },
    "vllm.v1.core.kv_cache_utils": {
        "_get_kv_cache_config_deepseek_v4": "2b964a158cdb46d5",
        "_get_kv_cache_groups_uniform_groups": "0f2f756047c2ea7e",
        "_max_memory_usage_bytes_from_groups": "0cfd47cdf5065319",
        "_pool_bytes_per_block": "0439ce2f21d25f12",
        "generate_block_hash_extra_keys": "e09249e0ccb5e5d8",
        "get_kv_cache_configs": "4b0ffa0de9d0fee1",
        "get_max_concurrency_for_kv_cache_config": "d65ca5af2b5d6465",
        "get_request_block_hasher": "b0287304e716cfd9",
        "group_and_unify_kv_cache_specs": "0c5b3282a749ff8e",
        "resolve_kv_cache_block_sizes": "8d94b0117a0fa0f1",
    },
    "vllm.v1.core.sched.scheduler": {
        "Scheduler.__init__": "bc95a9f15113e884",
        "Scheduler._handle_invalid_blocks": "e42aa17d64fcda2a",
        "Scheduler._preempt_request": "128202fc69d1f908",
        "Scheduler._select_waiting_queue_for_scheduling": "70bfb3b443725109",
        "Scheduler._update_after_schedule": "5dcec8ecd4cd8b72",
        "Scheduler._update_request_as_session": "dde031ff38979b1b",
        "Scheduler.add_request": "8cc681fcab754b3c",
        "Scheduler.has_finished_requests": "7c1f6d900b72ca48",
        "Scheduler.make_stats": "c495855b2fac9c07",
        "Scheduler.reset_prefix_cache": "cfb9da648143a518",
        "Scheduler.update_from_output": "7d43ee5ee3f6ca2a",
        "Scheduler.schedule": "b6e10e6f11324a0b",
    },
    "vllm.v1.core.single_type_kv_cache_manager": {
        "CrossAttentionManager.cache_blocks": "dd9074c00825e99f",
        "MambaManager.cache_blocks": "93bfc8477dbe8642",
        "SingleTypeKVCacheManager.cache_blocks": "56f454398def9d3e",
        "get_manager_for_kv_cache_spec": "2474d51502ac06d6",
    },
    "vllm.v1.engine.core": {
        "EngineCore._initialize_kv_caches": "be9122ca50566f33",
        "EngineCore._reset_caches": "e594aabe3e54639e",
        "EngineCore.step": "3bdcb3b9e7445988",
        "EngineCore.step_with_batch_queue": "1a36cf4e14f673fd",
        "EngineCoreProc._handle_client_request": "c1a96ed013195dfa",
    },
    "vllm.v1.engine.core_client": {
        "DPAsyncMPClient.__init__": "bc46f22018f30df6",
        "DPAsyncMPClient.add_request_async": "824f4df2c45ab358",
        "DPLBAsyncMPClient.abort_requests_async": "b3c3040ffbcc5920",
        "DPLBAsyncMPClient.get_core_engine_for_request": "9d09d21116b534d6",
        "DPLBAsyncMPClient.process_engine_outputs": "fdc890c2cb339454",
    },
    "vllm.v1.kv_cache_interface": {
        "MLAAttentionSpec": "9f27c636faca79dd",
        "SlidingWindowMLASpec": "7feb3df068e09b2f",
    },
    "vllm.v1.metrics.loggers": {"StatLoggerManager.__init__": "47afa5278ef89cb8"},
    "vllm.v1.worker.gpu_model_runner": {
        "GPUModelRunner._allocate_kv_cache_tensors": "3003a8fcfa3ceb69",
        "GPUModelRunner._update_states": "2c51aa694e26bb38",
        "GPUModelRunner.may_reinitialize_input_batch": "c85d53e38965e3c2",
    },
    "vllm.v1.worker.worker_base": {"WorkerWrapperBase.execute_model": "beb33a0813e85b30"},
    "vllm_ascend.attention.context_parallel.dsa_cp": {
        "AscendDSACPMetadataBuilder.build": "356d4c9389220ea3",
        "AscendDSACPMetadataBuilder.build_for_drafting": "42094cec95506ecf",
        "AscendDSACPMetadataBuilder.build_req_metadata": "b602d01be355b4b8",
    },
    "vllm_ascend.attention.dsa_v1": {
        "AscendDSABackend.get_supported_kernel_block_sizes": "010b1e62ddbefba9",
        "AscendDSAMetadataBuilder.build": "8a227dac0925acc7",
        "AscendDSAMetadataBuilder.build_decode_metadata": "65a5c25ecaeb789d",
        "AscendDSAMetadataBuilder.build_for_drafting": "ea0e3c83a0192849",
        "AscendDSAMetadataBuilder.build_prefill_metadata": "1a782d89a97875f3",
    },
    "vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_hybrid_connector": {
        "KVCacheRecvingThread.__init__": "03fa8d452aa4134e",
        "KVCacheRecvingThread._get_remote_socket": "035db4adc3c96d68",
        "KVCacheRecvingThread._transfer_kv_cache": "207375aff05d535f",
        "KVCacheRecvingThread._transfer_kv_cache_all_groups": "1b12f319a8e4e19d",
        "KVCacheSendingThread.__init__": "8772fc7217712f7c",
        "KVCacheSendingThread.run_busy_loop": "ab9bb6bf40c26a3a",
        "MooncakeConnectorScheduler.request_finished_all_groups": (
            "d40558644bb7a848",
            "18ec1e904d85964c",
        ),
        "MooncakeConnectorWorker.register_kv_caches": "30cf1f3b7c0ff1b6",
    },
    "vllm_ascend.models.layer.attention.layer": {
        "DSAAttention.get_kv_cache_spec": "acbaac96850e5432",
    },
    "vllm_ascend.utils": {"refresh_block_size": "9a40c748584dd47b"},
    "vllm_ascend.worker.model_runner_v1": {
        "NPUModelRunner._allocate_kv_cache_tensors": "c5accffcbbebaa7a",
    },
}


class Vllm0202(BlocksOfRows):
    """Managers stand in a map by exact class, and are not told the scheduler's alignment."""

    vllm = "0.20.2"
    vllm_ascend = "0.20.2rc"
    replaced: ClassVar[frozenset[str]] = frozenset(
        {
            "core/single_type_kv_cache_manager.py",
            "patch/platform/patch_kv_cache_coordinator.py",
            "patch/platform/patch_kv_cache_interface.py",
            "patch/platform/patch_kv_cache_utils.py",
            "patch/worker/patch_deepseek_compressor.py",
            "worker/block_table.py",
        }
    )
    hooks: ClassVar[Mapping[str, str]] = {
        "patch/platform/__init__.py": "vllm_ascend.patch.platform.patch_kv_cache_interface",
        "patch/worker/__init__.py": "vllm_ascend.patch.worker.patch_deepseek_compressor",
    }
    digests: ClassVar[Mapping[str, Mapping[str, Digests]]] = _DIGESTS
    native: ClassVar[Mapping[str, str]] = {
        **GROUPED_BY_KIND,
        **KERNELS_BY_NAME,
        "vllm_ascend.worker.block_table:BlockTable.move_row": (
            "our block table empties rows that moved"
        ),
    }

    def chooses_manager(self, spec: KVCacheSpec) -> bool:
        from vllm.v1.core import single_type_kv_cache_manager as managers

        return type(spec) in managers.spec_manager_map

    def manager_class(self, spec: KVCacheSpec) -> type[SingleTypeKVCacheManager] | None:
        from vllm.v1.core import single_type_kv_cache_manager as managers

        known = managers.spec_manager_map
        return next((known[base] for base in type(spec).__mro__ if base in known), None)

    def uses_second_model_runner(self, vllm_config: VllmConfig) -> bool:
        from vllm import envs

        return bool(envs.VLLM_USE_V2_MODEL_RUNNER)

    def coordinator_attributes(
        self, alignment: int, interval: int | None, block_tokens: Sequence[int]
    ) -> dict[str, Any]:
        # Read by vLLM's own look-up alone, which ours takes the place of.
        return {"eagle_attn_group_indices": frozenset()}

    def discard_next_output(self, request: Request) -> None:
        request.discard_latest_async_tokens = True

    def forget_prefill(self, scheduler: Scheduler, request: Request) -> None:
        """Do nothing: vLLM reserves nothing."""
