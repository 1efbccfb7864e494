# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py) that has a scheduler of dynamic batches."""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

import pytest

from tests.upstream.fixtures import without_npu  # noqa: F401
from vllm_ascend.core.scheduler_dynamic_batch import SchedulerDynamicBatch
from vllm_ascend.dry_run import scheduler as replay_scheduler
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler


def test_dynamic_batch_cannot_be_made_on_this_vllm(monkeypatch, without_npu):
    """It knows no hash block size, which vLLM 0.20.2 passes: nothing of ours is missing there."""
    options = SchedulerOptions(num_blocks=2000)
    monkeypatch.setattr(replay_scheduler, "Scheduler", SchedulerDynamicBatch)
    with pytest.raises(TypeError, match="unexpected keyword argument 'hash_block_size'"):
        build_scheduler(dsv4_flash_a3(128), options)
