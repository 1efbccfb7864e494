# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.32.0: who holds blocks runs while others are paused, and loads say what they write.

No vllm-ascend for it is known, so the overlay goes over none. Source: vLLM 0.32.0,
``vllm/v1/core``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from vllm_ascend.releases import shared
from vllm_ascend.releases.release import Digests
from vllm_ascend.releases.shared import (
    BlocksOfTokens,
    HoldersWaitApart,
    LayoutOfConfig,
    RoomForPrefills,
    SpecRegistry,
)

_DIGESTS: dict[str, dict[str, Digests]] = {
    "vllm.config.vllm": {"VllmConfig.validate_block_size": "ab1070875739f68a"},
    "vllm.engine.arg_utils": {"EngineArgs.create_engine_config": "626ab54ba6f0ed2c"},
    "vllm.platforms.cpu": {"CpuPlatform.check_and_update_config": "65ae4960bdf28214"},
    "vllm.v1.core.kv_cache_coordinator": {"get_kv_cache_coordinator": "9d447e2c6d7417ac"},
    "vllm.v1.core.kv_cache_manager": {
        "KVCacheManager.__init__": "0a02967d0baaa379",
        "KVCacheManager.get_computed_blocks": "be9daa362e13ca7f",
    },
    "vllm.v1.core.kv_cache_utils": {
        "_get_packed_kv_cache_groups": "758d79667766c197",
        "_max_memory_usage_bytes_from_groups": "0060559f6b10e9dd",
        "_pool_bytes_per_block": "99d5ba0f4fda9a62",
        "generate_block_hash_extra_keys": "fabb6e4b928af21a",
        "get_kv_cache_config_from_groups": "6954cbfecb1bfc13",
        "get_kv_cache_configs": "6154002c9d6937f7",
        "get_max_concurrency_for_kv_cache_config": "42951c71955a1d0a",
        "get_request_block_hasher": "68c195e3879cc4c2",
        "resolve_kv_cache_block_sizes": "b3833fa6b3549968",
    },
    "vllm.v1.core.sched.scheduler": {
        "Scheduler.__init__": "b6205d4d574fe444",
        "Scheduler._handle_invalid_blocks": "9cacc1dc52aab1fd",
        "Scheduler._preempt_request": "979be013f1f2b30c",
        "Scheduler._update_after_schedule": "b740cc3185990117",
        "Scheduler._update_request_as_session": "6ee14a2db5d6fdfe",
        "Scheduler.make_stats": "9665035dcd415624",
        "Scheduler.reset_prefix_cache": "09dae60bcdd146e4",
        "Scheduler.update_from_output": "3c9751a0424f8f2f",
        "Scheduler.schedule": "b858cfaada3974fa",
        "Scheduler.add_request": "d44c6de45d62abfa",
        "Scheduler.has_finished_requests": "9707335b0835dbbe",
    },
    "vllm.v1.core.single_type_kv_cache_manager": {
        "get_manager_for_kv_cache_spec": "772ee1f25d6ee102"
    },
    "vllm.v1.engine.core": {
        "EngineCore._initialize_kv_caches": "f60696719c66f0b5",
        "EngineCore.step": "9ad5a218b25edd46",
        "EngineCore.step_with_batch_queue": "3bae00736698da79",
        "EngineCoreProc._handle_client_request": "6870d40b73da5b70",
    },
    "vllm.v1.engine.core_client": {
        "DPAsyncMPClient.__init__": "87c1ce113ff1461b",
        "DPAsyncMPClient.add_request_async": "824f4df2c45ab358",
        "DPLBAsyncMPClient.abort_requests_async": "b3c3040ffbcc5920",
        "DPLBAsyncMPClient.get_core_engine_for_request": "8e4682e3995573ca",
        "DPLBAsyncMPClient.process_engine_outputs": "3537d6283927396a",
    },
    "vllm.v1.metrics.loggers": {"StatLoggerManager.__init__": "47afa5278ef89cb8"},
}


class Vllm0320(BlocksOfTokens, SpecRegistry, RoomForPrefills, HoldersWaitApart, LayoutOfConfig):
    """Who holds blocks runs while new requests are paused; loads say which groups they write."""

    vllm = "0.32.0"
    holders_run_while = ("UNPAUSED", "PAUSED_NEW")
    digests: ClassVar[Mapping[str, Mapping[str, Digests]]] = _DIGESTS
    native: ClassVar[Mapping[str, str]] = {
        **shared.RETENTION_IN_VLLM,
        **shared.SPECS_OF_VLLM_ASCEND,
        **shared.GROUPED_IN_PACKS,
        **shared.COPIES_IN_VLLM,
        **shared.KERNELS_ARE_GIVEN,
    }
    absent: ClassVar[Mapping[str, str]] = {**shared.NO_CHOICE_OF_QUEUE, **shared.NO_VLLM_ASCEND}
