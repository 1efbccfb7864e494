# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.31.0: who waits and holds blocks waits apart, and hashes say what each key is.

No vllm-ascend for it is known, so the overlay goes over none. Source: vLLM 0.31.0,
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
    LeavesLoadsUnzeroed,
    RoomForPrefills,
    SpecRegistry,
)

_DIGESTS: dict[str, dict[str, Digests]] = {
    "vllm.config.vllm": {"VllmConfig.validate_block_size": "ab1070875739f68a"},
    "vllm.engine.arg_utils": {"EngineArgs.create_engine_config": "0c3a387b359a934b"},
    "vllm.platforms.cpu": {"CpuPlatform.check_and_update_config": "dc26c3b0df291081"},
    "vllm.v1.core.kv_cache_coordinator": {"get_kv_cache_coordinator": "9d447e2c6d7417ac"},
    "vllm.v1.core.kv_cache_manager": {
        "KVCacheManager.__init__": "0a02967d0baaa379",
        "KVCacheManager.get_computed_blocks": "be9daa362e13ca7f",
    },
    "vllm.v1.core.kv_cache_utils": {
        "_get_packed_kv_cache_groups": "758d79667766c197",
        "_max_memory_usage_bytes_from_groups": "3fa885d64c5edd94",
        "_pool_bytes_per_block": "3784a321bda2168e",
        "generate_block_hash_extra_keys": "fabb6e4b928af21a",
        "get_kv_cache_config_from_groups": "2f9053dcc1ca9800",
        "get_kv_cache_configs": "7b5ce29fb1fa18c8",
        "get_max_concurrency_for_kv_cache_config": "42951c71955a1d0a",
        "get_request_block_hasher": "68c195e3879cc4c2",
        "resolve_kv_cache_block_sizes": "8a3d997e00c3a3f1",
    },
    "vllm.v1.core.sched.scheduler": {
        "Scheduler.__init__": "b1f00a80848023b4",
        "Scheduler._handle_invalid_blocks": "9cacc1dc52aab1fd",
        "Scheduler._preempt_request": "979be013f1f2b30c",
        "Scheduler._update_after_schedule": "b740cc3185990117",
        "Scheduler._update_request_as_session": "73ac295fdd0d3ff3",
        "Scheduler.make_stats": "c0fcdd0eb8ae6898",
        "Scheduler.reset_prefix_cache": "e06c86f8e2e97cba",
        "Scheduler.update_from_output": "3c9751a0424f8f2f",
        "Scheduler.schedule": "8f24ffc6ee51149c",
        "Scheduler.add_request": "5eafa1332aaa763a",
        "Scheduler.has_finished_requests": "9707335b0835dbbe",
    },
    "vllm.v1.core.single_type_kv_cache_manager": {
        "get_manager_for_kv_cache_spec": "772ee1f25d6ee102"
    },
    "vllm.v1.engine.core": {
        "EngineCore._initialize_kv_caches": "c82cf5e45e1dd3fb",
        "EngineCore.step": "8820ed74a8d73a07",
        "EngineCore.step_with_batch_queue": "4602dffbff404f7e",
        "EngineCoreProc._handle_client_request": "6870d40b73da5b70",
    },
    "vllm.v1.engine.core_client": {
        "DPAsyncMPClient.__init__": "87c1ce113ff1461b",
        "DPAsyncMPClient.add_request_async": "824f4df2c45ab358",
        "DPLBAsyncMPClient.abort_requests_async": "b3c3040ffbcc5920",
        "DPLBAsyncMPClient.get_core_engine_for_request": "4118c66eb546fad1",
        "DPLBAsyncMPClient.process_engine_outputs": "3537d6283927396a",
    },
    "vllm.v1.metrics.loggers": {"StatLoggerManager.__init__": "47afa5278ef89cb8"},
}


class Vllm0310(
    BlocksOfTokens, SpecRegistry, RoomForPrefills, HoldersWaitApart, LeavesLoadsUnzeroed
):
    """Waiting requests that hold blocks have a queue of their own, which goes first."""

    vllm = "0.31.0"
    digests: ClassVar[Mapping[str, Mapping[str, Digests]]] = _DIGESTS
    native: ClassVar[Mapping[str, str]] = {
        **shared.RETENTION_IN_VLLM,
        **shared.SPECS_OF_VLLM_ASCEND,
        **shared.GROUPED_IN_PACKS,
        **shared.COPIES_IN_VLLM,
        **shared.KERNELS_ARE_GIVEN,
    }
    absent: ClassVar[Mapping[str, str]] = {**shared.NO_CHOICE_OF_QUEUE, **shared.NO_VLLM_ASCEND}
