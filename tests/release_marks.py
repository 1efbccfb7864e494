# SPDX-License-Identifier: Apache-2.0
"""Marks for tests of what only some of the supported releases need or do."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from vllm.config import SpeculativeConfig
from vllm.distributed.kv_events import BlockStored
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_ascend.prefix_cache_config import is_left_to_vllm
from vllm_ascend.releases import SUPPORTED, running_release


def is_native(target: str) -> bool:
    """Whether the running release has by itself what a patch of this target brings."""
    return target in running_release().native


def with_our_interval(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which the retention interval, if there is one, is ours.

    A vLLM that reads the variable itself has it alone, where nothing of ours is switched on.
    """
    ours = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"} if is_left_to_vllm(environment) else {}
    return {**environment, **ours}


def where_patched(target: str) -> pytest.MarkDecorator:
    """Skip where the running release has it itself: its own tests are vLLM's."""
    return pytest.mark.skipif(is_native(target), reason=f"vLLM has its own {target}")


# What is recorded, or shown to be wrong, in the release that the cure was first written for.
ON_THE_FIRST_RELEASE = pytest.mark.skipif(
    running_release() is not SUPPORTED[0], reason=f"is about vLLM {SUPPORTED[0].vllm}"
)
# Of layouts whose blocks count rows, and of the managers that they need.
WHERE_BLOCKS_COUNT_ROWS = pytest.mark.skipif(
    not running_release().counts_rows, reason="vllm-ascend's specs count tokens, as vLLM's do"
)
# Decoders of older releases read them.
WHERE_EVENTS_ARE_ARRAYS = pytest.mark.skipif(
    not BlockStored.__struct_config__.array_like, reason="this vLLM sends its events as maps"
)
# Later releases free blocks of steps in flight later, and refuse a reset until then.
WHERE_BLOCKS_ARE_FREED_AT_ONCE = pytest.mark.skipif(
    hasattr(Scheduler, "_drain_deferred_frees"),
    reason="vLLM refuses to reset the cache under a step in flight beside a connector",
)
WHERE_VLLM_HAS_DSPARK = pytest.mark.skipif(
    not running_release().has_dspark, reason="this vLLM has no DSpark"
)
WHERE_VLLM_DROPS_A_BLOCK_FOR_DSPARK = pytest.mark.skipif(
    hasattr(SpeculativeConfig, "needs_eagle_block_drop"),
    reason="vLLM drops nothing for DSpark",
)
WHERE_SESSIONS_MAY_BE_IN_NO_QUEUE = pytest.mark.skipif(
    hasattr(Scheduler, "_drain_deferred_loads"),
    reason="vLLM puts sessions that go on into a queue when those that ended have left theirs",
)
# From 0.23 on vLLM refuses its second model runner itself where there is no Triton.
WHERE_THE_SECOND_RUNNER_RUNS = pytest.mark.skipif(
    running_release() is not SUPPORTED[0] and not HAS_TRITON and current_platform.is_cpu(),
    reason="vLLM refuses its second model runner without Triton",
)
