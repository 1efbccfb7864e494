# SPDX-License-Identifier: Apache-2.0
"""What several releases share, each part named for what it is. It goes with the last that has it.

Sources: vLLM 0.23.0 and 0.30.0, ``vllm/v1/core``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_ascend.releases.release import Release

if TYPE_CHECKING:
    from vllm.config import CacheConfig, VllmConfig
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
    from vllm.v1.kv_cache_interface import (
        KVCacheConfig,
        KVCacheGroupSpec,
        KVCacheSpec,
        KVCacheTensor,
    )
    from vllm.v1.request import Request

    from vllm_ascend.core.policy.units import KVCacheBlockCopy

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

_POSTPROCESS = "vllm.v1.worker.cpu_model_runner:CPUModelRunner._postprocess_triton"

# Of later releases; here three functions on the way there are changed.
KERNELS_BY_NAME = {
    _POSTPROCESS: "kernels are looked up by name when they are started",
}
KERNELS_ARE_GIVEN = {_POSTPROCESS: "vLLM gives its kernels for the CPU to what starts them"}
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
    f"{_POOL}.__init__": _FRONT,
    f"{_POOL}.free_blocks": _FRONT,
    f"{_POOL}.cache_full_blocks": "cache_full_blocks(block_mask) is vLLM's own",
    f"{_MANAGERS}:SingleTypeKVCacheManager.cache_blocks": _INTERVAL,
    f"{_MANAGERS}:MambaManager.cache_blocks": _INTERVAL,
    f"{_MANAGERS}:CrossAttentionManager.cache_blocks": _INTERVAL,
    f"{_MANAGERS}:SingleTypeKVCacheManager.reachable_block_mask": _REACHABLE,
    f"{_MANAGERS}:SlidingWindowManager.reachable_block_mask": _REACHABLE,
    f"{_MANAGERS}:SlidingWindowManager._contiguous_blocks_for_hit": _REACHABLE,
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
COPIES = "vLLM's scheduler hands out block copies, and its runners make them"
_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
COPIES_IN_VLLM: Mapping[str, str] = {
    "vllm.v1.core.kv_cache_manager:KVCacheManager.take_kv_cache_block_copies": COPIES,
    "vllm.v1.core.sched.output:SchedulerOutput.kv_cache_block_copies": COPIES,
    f"{_RUNNER}.kv_cache_pages": COPIES,
    f"{_RUNNER}.num_block_copies": COPIES,
    f"{_RUNNER}._allocate_kv_cache_tensors": COPIES,
    f"{_RUNNER}._update_states": COPIES,
    f"{_RUNNER}.may_reinitialize_input_batch": (
        "blocks of every group count tokens, as vLLM's block tables do"
    ),
    "vllm.v1.worker.worker_base:WorkerWrapperBase.execute_model": COPIES,
    "vllm.utils.cpu_triton_utils:_FuncWrapper.__getitem__": (
        "the stand-ins for kernels take all arguments"
    ),
}
_PACKS = "_get_packed_kv_cache_groups and get_kv_cache_config_from_groups are changed instead"
GROUPED_IN_PACKS: Mapping[str, str] = {
    f"{UTILS}:group_and_unify_kv_cache_specs": _PACKS,
    f"{UTILS}:_get_kv_cache_groups_uniform_groups": _PACKS,
    f"{UTILS}:_get_kv_cache_config_deepseek_v4": _PACKS,
}
OF_VLLM_ASCEND = (
    *(
        f"{DSA}:{name}"
        for name in (
            "AscendDSABackend.get_supported_kernel_block_sizes",
            "AscendDSAMetadataBuilder.build",
            "AscendDSAMetadataBuilder.build_for_drafting",
            "AscendDSAMetadataBuilder.build_prefill_metadata",
            "AscendDSAMetadataBuilder.build_decode_metadata",
        )
    ),
    *(f"{DSA_CP}.{name}" for name in ("build", "build_for_drafting", "build_req_metadata")),
    *(
        f"{MOONCAKE}:{name}"
        for name in (
            "KVCacheRecvingThread.__init__",
            "KVCacheRecvingThread._get_remote_socket",
            "KVCacheRecvingThread._transfer_kv_cache",
            "KVCacheRecvingThread._transfer_kv_cache_all_groups",
            "KVCacheSendingThread.__init__",
            "KVCacheSendingThread.run_busy_loop",
            "MooncakeConnectorScheduler.request_finished_all_groups",
            "MooncakeConnectorWorker.register_kv_caches",
        )
    ),
    "vllm_ascend.models.layer.attention.layer:DSAAttention.get_kv_cache_spec",
    "vllm_ascend.utils:refresh_block_size",
    "vllm_ascend.worker.block_table:BlockTable.move_row",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._allocate_kv_cache_tensors",
)

NO_VLLM_ASCEND = dict.fromkeys(OF_VLLM_ASCEND, "no vllm-ascend for this vLLM is known")
NO_CHOICE_OF_QUEUE = {
    "vllm.v1.core.sched.scheduler:Scheduler._select_waiting_queue_for_scheduling": (
        "who holds blocks waits in a queue of its own"
    ),
}


class BlocksOfTokens(Release):
    """Blocks count tokens, vLLM copies them, and a tensor is one layer's part of the pool.

    Tokens in flight are counted, hits are touched before anything is allocated.
    """

    counts_rows = False
    reserves_null_block = True
    ratio_field = "tokens_per_state"
    hash_size_field = "prefix_match_unit"
    second_runner_serves = True
    has_dspark = True
    forget_in_flight: ClassVar[Mapping[str, Any]] = {"drop_stale_output": True}
    step_tokens = "max_in_flight_tokens"

    def why_left_to_vllm(self, specs: Collection[KVCacheSpec]) -> str:
        from vllm.v1.kv_cache_interface import MambaSpec

        if not all(spec.prefix_cacheable for spec in specs):
            return "it has blocks of scratch, which vLLM takes out of every hit"
        if any(getattr(spec, "model_version", None) == "deepseek_v41" for spec in specs):
            return "vllm-ascend's own coordinator finds its hits at every 128 tokens"
        if any(isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "align" for spec in specs):
            return "vLLM's own bookkeeping of Mamba states finds hits inside blocks"
        return ""

    def page_bytes(self, kv_cache_config: KVCacheConfig) -> dict[str, int]:
        """Return the bytes of a block of every layer: what lies between layers, or blocks.

        Between layers lies nothing where a tensor is one layer's alone.
        """
        return {
            layer: min(tensor.layer_stride or tensor.block_stride, tensor.block_stride)
            for tensor in kv_cache_config.kv_cache_tensors
            for layer in tensor.layers
        }

    def tensors(
        self, pages: Sequence[tuple[int, tuple[str, ...]]], num_blocks: int
    ) -> list[KVCacheTensor]:
        from vllm.v1.kv_cache_interface import KVCacheTensor

        size, offset = sum(page_bytes for page_bytes, _ in pages) * num_blocks, 0
        tensors: list[KVCacheTensor] = []
        for page_bytes, layers in pages:
            tensors += [
                KVCacheTensor(
                    size=size,
                    layers=[layer],
                    layer_stride=page_bytes * num_blocks,
                    block_stride=page_bytes,
                    offset=offset,
                )
                for layer in layers
            ]
            offset += page_bytes * num_blocks
        return tensors

    def cache_settings(self, specs: Collection[KVCacheSpec]) -> dict[str, Any]:
        from vllm_ascend.core.layout.kv_cache_groups import is_ascend_layout

        # What the engine makes of the layouts that attention backends support: pages of several
        # sizes are packed block by block.
        is_packed = len({spec.page_size_bytes for spec in specs}) > 1
        settings: dict[str, Any] = {"kv_cache_layout": "BLNHC" if is_packed else "LBNHC"}
        if is_ascend_layout(specs):
            # vllm-ascend's coordinator reads an environment variable that vLLM has no longer.
            settings["prefix_cache_retention_interval"] = None
        return settings

    def retention_option(self, config: CacheConfig | KVCacheConfig) -> int | None:
        # 0 is the default; whether it was typed in cannot be told.
        return config.prefix_cache_retention_interval or None

    def uses_second_model_runner(self, vllm_config: VllmConfig) -> bool:
        return bool(vllm_config.use_v2_model_runner)

    def draft_event_metadata(self, num_groups: int) -> tuple[tuple[str | None, int | None], ...]:
        # It warns of every event of a group that it does not find.
        return ((None, None),) * num_groups

    def discard_next_output(self, request: Request) -> None:
        """Do nothing: vLLM drops it, see :attr:`forget_in_flight`."""

    def max_in_flight_tokens(self, vllm_config: VllmConfig) -> int:
        return (
            vllm_config.max_in_flight_tokens - vllm_config.scheduler_config.max_num_batched_tokens
        )

    def tokens_of_step(self, told: int, num_in_flight_tokens: int) -> int:
        return told - num_in_flight_tokens

    def group_arguments(
        self, group: KVCacheGroupSpec, *, zeroes_new_blocks: bool
    ) -> dict[str, Any]:
        return {"role": group.role, "needs_kv_cache_zeroing": zeroes_new_blocks}

    def take_computed_blocks(
        self,
        manager: SingleTypeKVCacheManager,
        request_id: str,
        blocks: Sequence[KVCacheBlock],
        num_local_tokens: int,
        num_external_tokens: int,
    ) -> None:
        if request_id in manager.num_cached_block:
            assert not blocks, "a running request has no new hit"
            return
        # Counted as external, tokens behind the last whole block ask for no copy of vLLM's.
        whole = num_local_tokens // manager.block_size * manager.block_size
        manager.add_local_computed_blocks(
            request_id, blocks, whole, num_local_tokens + num_external_tokens - whole
        )
        if num_external_tokens:
            manager.allocate_external_computed_blocks(
                request_id, num_local_tokens, num_external_tokens
            )

    def blocks_to_allocate(
        self,
        manager: SingleTypeKVCacheManager,
        request_id: str,
        num_tokens: int,
        hit_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        num_tokens_main_model: int,
    ) -> int:
        # Local tokens are asked for to reserve vLLM's own copy of a block; none is made here.
        num_local_tokens = 0
        return manager.get_num_blocks_to_allocate(
            request_id,
            num_tokens,
            hit_blocks,
            total_computed_tokens,
            num_local_tokens,
            num_tokens_main_model,
        )

    def enter_all(
        self, manager: SingleTypeKVCacheManager, request: Request, num_tokens: int
    ) -> None:
        manager.cache_blocks(request, num_tokens, retention_interval=None, replay_boundaries=())

    def coordinator_attributes(
        self, alignment: int, interval: int | None, block_tokens: Sequence[int]
    ) -> dict[str, Any]:
        return {
            "scheduler_block_size": alignment,
            "retention_interval": interval,
            # Drafts of several modules are refused where the coordinator is chosen.
            "num_reprefillable_tokens": 0,
            "group_block_sizes": tuple(block_tokens),
            "dcp_world_size": 1,
            # None: beside a connector that brings Mamba states, too, a hit is what all groups have.
            "full_attention_group_id": None,
        }

    def found(self, blocks: tuple[list[KVCacheBlock], ...], num_tokens: int) -> tuple:
        # 0: where requests leave a cached prefix is remembered with the request.
        return blocks, num_tokens, 0

    def copies_told(self, copies: list[KVCacheBlockCopy] | None) -> Any:
        return copies or [], []  # no blocks of vLLM's own to free behind them


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


class LeavesLoadsUnzeroed(Release):
    """The scheduler remembers which new blocks loads beside the steps write; others are zeroed."""

    def zero_what_is_loaded(self, scheduler: Scheduler) -> None:
        scheduler._skip_zero_block_ids = _StaysEmpty()


class _StaysEmpty(set):
    """A set that forgets what it is given."""

    def update(self, *others: Iterable[Any]) -> None:
        """Take nothing in."""


class LayoutOfConfig(Release):
    """The bytes of a pool's block are asked for with the configuration."""

    def pool_bytes_per_block(
        self, vllm_config: VllmConfig, groups: Sequence[KVCacheGroupSpec]
    ) -> int:
        return self.planning._pool_bytes_per_block(vllm_config, list(groups))


class HoldersWaitApart(Release):
    """Waiting requests that hold blocks have a queue of their own, which goes first."""

    admission_cap = "max_admission_blocks_per_request"
    most_running = "max_num_active_reqs"
    queue_of_holders = "kv_holding_waiting"
    holders_go_first = True
