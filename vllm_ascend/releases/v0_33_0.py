# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.33.0: pools are planned by a module of their own, hashes may look ahead, drafts say so.

There is no build of it for CPUs, and no vllm-ascend for it is known: its scheduler alone runs.
Source: vLLM 0.33.0, ``vllm/v1/core``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_ascend.releases import shared
from vllm_ascend.releases.release import Digests
from vllm_ascend.releases.shared import (
    BlocksOfTokens,
    HoldersWaitApart,
    LayoutOfConfig,
    RoomForPrefills,
    SpecRegistry,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

_DIGESTS: dict[str, dict[str, Digests]] = {
    "vllm.config.vllm": {"VllmConfig.validate_block_size": "f8026471e382f67c"},
    "vllm.engine.arg_utils": {"EngineArgs.create_engine_config": "867d64e61316a53b"},
    "vllm.platforms.cpu": {"CpuPlatform.check_and_update_config": "9f8dd07ab1101536"},
    "vllm.v1.core.kv_cache_coordinator": {"get_kv_cache_coordinator": "95fc565b3e8ac396"},
    "vllm.v1.core.kv_cache_manager": {
        "KVCacheManager.__init__": "d4958bb6b198b275",
        "KVCacheManager.get_computed_blocks": "0827f24cae40958f",
    },
    "vllm.v1.core.kv_cache_utils": {
        "_get_packed_kv_cache_groups": "6a45bfaf2d165261",
        "_max_memory_usage_bytes_from_groups": "b20a8519ded9122b",
        "_pool_bytes_per_block": "99d5ba0f4fda9a62",
        "generate_block_hash_extra_keys": "fabb6e4b928af21a",
        "get_kv_cache_config_from_groups": "6954cbfecb1bfc13",
        "get_kv_cache_configs": "992f93e118c56073",
        "get_max_concurrency_for_kv_cache_config": "42951c71955a1d0a",
        "get_request_block_hasher": "6e4728966af6ef0c",
        "resolve_kv_cache_block_sizes": "b3833fa6b3549968",
    },
    "vllm.v1.core.sched.scheduler": {
        "Scheduler.__init__": "548ff1acb52f504f",
        "Scheduler._handle_invalid_blocks": "9cacc1dc52aab1fd",
        "Scheduler._preempt_request": "acc22c4f19f6c1cc",
        "Scheduler._update_after_schedule": "b740cc3185990117",
        "Scheduler._update_request_as_session": "a71230942c5aa7cd",
        "Scheduler.make_stats": "9665035dcd415624",
        "Scheduler.reset_prefix_cache": "09dae60bcdd146e4",
        "Scheduler.update_from_output": "29c61b98701b26c4",
        "Scheduler.schedule": "32f915f36c77cedd",
        "Scheduler.add_request": "d44c6de45d62abfa",
        "Scheduler.has_finished_requests": "9707335b0835dbbe",
    },
    "vllm.v1.core.single_type_kv_cache_manager": {
        "get_manager_for_kv_cache_spec": "772ee1f25d6ee102"
    },
    "vllm.v1.engine.core": {
        "EngineCore._initialize_kv_caches": "6a82c12b200f3301",
        "EngineCore.step": "9ad5a218b25edd46",
        "EngineCore.step_with_batch_queue": "3bae00736698da79",
        "EngineCoreProc._handle_client_request": "e3f2fe281f15032d",
    },
    "vllm.v1.engine.core_client": {
        "DPAsyncMPClient.__init__": "88008d6a7e924cb3",
        "DPAsyncMPClient.add_request_async": "beeb716a67154373",
        "DPLBAsyncMPClient.abort_requests_async": "613e4e8448d94c33",
        "DPLBAsyncMPClient.get_core_engine_for_request": "f5e25a546b97ec6b",
        "DPLBAsyncMPClient.process_engine_outputs": "3537d6283927396a",
    },
    "vllm.v1.metrics.loggers": {"StatLoggerManager.__init__": "47afa5278ef89cb8"},
}


_PLANNING = "vllm.v1.core.kv_cache_planning"


class Vllm0330(BlocksOfTokens, SpecRegistry, RoomForPrefills, HoldersWaitApart, LayoutOfConfig):
    """Groups are made before pools are planned, and workers say which layers draft."""

    vllm = "0.33.0"
    scheduler_only = True
    holders_run_while = ("UNPAUSED", "PAUSED_NEW")
    digests: ClassVar[Mapping[str, Mapping[str, Digests]]] = _DIGESTS
    moved: ClassVar[Mapping[str, str]] = {
        f"{shared.UTILS}:{name}": f"{_PLANNING}:{name}"
        for name in (
            "_get_packed_kv_cache_groups",
            "_max_memory_usage_bytes_from_groups",
            "_pool_bytes_per_block",
            "get_kv_cache_config_from_groups",
            "get_kv_cache_configs",
        )
    }
    native: ClassVar[Mapping[str, str]] = {
        **shared.RETENTION_IN_VLLM,
        **shared.SPECS_OF_VLLM_ASCEND,
        **shared.GROUPED_IN_PACKS,
        **shared.COPIES_IN_VLLM,
        **shared.KERNELS_ARE_GIVEN,
    }
    absent: ClassVar[Mapping[str, str]] = {**shared.NO_CHOICE_OF_QUEUE, **shared.NO_VLLM_ASCEND}

    @property
    def planning(self) -> ModuleType:
        from vllm.v1.core import kv_cache_planning

        return kv_cache_planning

    def groups_of_model(
        self, vllm_config: VllmConfig, specs: dict[str, KVCacheSpec]
    ) -> list[KVCacheGroupSpec]:
        from vllm_ascend.core.layout.kv_cache_groups import is_ascend_layout

        if vllm_config.speculative_config is not None and is_ascend_layout(specs.values()):
            # As its worker would say, and as other releases take it.
            last = list(specs)[-1]
            specs[last] = replace(specs[last], is_draft=True)
        return self.planning.get_global_kv_cache_groups(vllm_config, [specs])

    def plan_pool(
        self, vllm_config: VllmConfig, specs: dict[str, KVCacheSpec], memory: int
    ) -> list[KVCacheConfig]:
        groups = self.groups_of_model(vllm_config, specs)
        return self.planning.get_kv_cache_configs(vllm_config, [specs], [memory], groups)

    def flag_draft_groups(
        self,
        vllm_config: VllmConfig,
        specs: dict[str, KVCacheSpec],
        groups: list[KVCacheGroupSpec],
    ) -> None:
        """Flag nothing: vLLM flags the groups of all layers that draft."""

    def coordinator_attributes(
        self, alignment: int, interval: int | None, block_tokens: Sequence[int]
    ) -> dict[str, Any]:
        attributes = super().coordinator_attributes(alignment, interval, block_tokens)
        # Blocks know what followed them: none is dropped for drafts.
        return {**attributes, "drop_eagle_group_ids": frozenset()}

    def hash_own_tokens_alone(self, vllm_config: VllmConfig) -> None:
        if vllm_config.speculative_config is not None:
            vllm_config.speculative_config.disable_lookahead_block_hashes = True
