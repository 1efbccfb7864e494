# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py): windows are held for the steps that still read them.

A connector writes into a block as soon as it is given to another request, beside the steps in
flight. vllm-ascend holds windows until those are back; so do the groups whose tails are kept here.
"""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.upstream.fixtures import without_npu  # noqa: F401
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.releases import running_release
from vllm_ascend_evaluation.oracle.worker import ShadowWorker

STEP_TOKENS = 2048


@pytest.fixture(params=(None, "best"))
def scheduler(request, monkeypatch, without_npu) -> Scheduler:
    if request.param is not None:
        monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", request.param)
        monkeypatch.setenv("VLLM_ASCEND_DSV4_SPARSE_STATE", "0")  # as beside a connector
    options = SchedulerOptions(num_blocks=2000, max_num_batched_tokens=STEP_TOKENS)
    return build_scheduler(dsv4_flash_a3(128), options)


def first_held(scheduler: Scheduler, name: str) -> list[int]:
    """Return the first token that each window still holds of a request."""
    firsts = []
    coordinator = scheduler.kv_cache_manager.coordinator
    assert isinstance(coordinator, AscendHybridKVCacheCoordinator)
    for group in coordinator.groups.windowed:
        blocks = group.manager.req_to_blocks[name]
        null_blocks = next(i for i, block in enumerate(blocks) if not block.is_null)
        firsts.append(null_blocks * group.block_tokens)
    return firsts


def test_windows_stay_until_the_step_that_reads_them_is_back(scheduler):
    worker = ShadowWorker(scheduler)
    scheduler.add_request(make_request(scheduler, "long", list(range(4 * STEP_TOKENS)), 1))
    outputs = [scheduler.schedule()]
    outputs.append(scheduler.schedule())  # the first one is still in flight
    assert max(first_held(scheduler, "long")) == 0
    scheduler.update_from_output(outputs[0], worker.execute(outputs[0]))
    outputs.append(scheduler.schedule())
    assert 0 < max(first_held(scheduler, "long")) <= STEP_TOKENS
    assert running_release().in_flight_tokens(scheduler.requests["long"]) == 2 * STEP_TOKENS
