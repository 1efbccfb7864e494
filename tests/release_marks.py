# SPDX-License-Identifier: Apache-2.0
"""Marks for tests of what only some of the supported releases need or do."""

from __future__ import annotations

import pytest
from vllm.distributed.kv_events import BlockStored
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON

from vllm_ascend.releases import SUPPORTED, running_release


def is_native(target: str) -> bool:
    """Whether the running release has by itself what a patch of this target brings."""
    return target in running_release().native


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
# From 0.23 on vLLM refuses its second model runner itself where there is no Triton.
WHERE_THE_SECOND_RUNNER_RUNS = pytest.mark.skipif(
    running_release() is not SUPPORTED[0] and not HAS_TRITON and current_platform.is_cpu(),
    reason="vLLM refuses its second model runner without Triton",
)
