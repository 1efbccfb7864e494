# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py): all its schedulers hand copies to the workers.

Each drives the content oracle, which reads every row that a model would read.
"""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

import vllm_ascend.ascend_config as ascend_config_module
from tests.upstream.fixtures import without_npu  # noqa: F401
from vllm_ascend.core.recompute_scheduler import RecomputeScheduler
from vllm_ascend.core.scheduler_profiling_chunk import ProfilingChunkScheduler
from vllm_ascend.dry_run import scheduler as replay_scheduler
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.patch.platform.patch_balance_schedule import BalanceScheduler
from vllm_ascend_evaluation.oracle.integrity import check_drained, check_integrity
from vllm_ascend_evaluation.oracle.worker import ShadowWorker

SCHEDULERS = {
    "vllm": BalanceScheduler.__base__,
    "balance": BalanceScheduler,
    "recompute": RecomputeScheduler,
    "profiling chunk": ProfilingChunkScheduler,
}
PROMPT = list(range(1, 14_001))


@pytest.fixture(params=SCHEDULERS)
def scheduler(request, monkeypatch, without_npu) -> Scheduler:
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", "best")
    monkeypatch.setattr(replay_scheduler, "Scheduler", SCHEDULERS[request.param])
    schedulers = SimpleNamespace(
        enable_balance_scheduling=True,
        profiling_chunk_config=SimpleNamespace(
            enabled=True, smooth_factor=0.5, min_chunk=256, max_fit_chunk=None, need_timing=False
        ),
        short_request_first_config=SimpleNamespace(enabled=False),
    )
    # Later releases have the schedulers' settings one level down.
    ascend_config = SimpleNamespace(**vars(schedulers), scheduler_config=schedulers)
    monkeypatch.setattr(ascend_config_module, "init_ascend_config", lambda *_: ascend_config)
    monkeypatch.setattr(ascend_config_module, "get_ascend_config", lambda: ascend_config)
    return build_scheduler(dsv4_flash_a3(128), SchedulerOptions(num_blocks=2000))


def play(scheduler: Scheduler, worker: ShadowWorker, name: str) -> tuple[int, int]:
    """Run one request to its end; return its cached tokens and the copies made for it."""
    request = make_request(scheduler, name, PROMPT, 4)
    scheduler.add_request(request)
    copies = cached = 0
    while scheduler.requests:
        output = scheduler.schedule()
        cached += sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
        copies += len(output.kv_cache_block_copies or ())
        scheduler.update_from_output(output, worker.execute(output))
    return cached, copies


def test_a_repeated_prompt_hits_up_to_its_last_granule(scheduler):
    """And its copies reach the worker in the step that needs them."""
    worker = ShadowWorker(scheduler)
    assert play(scheduler, worker, "first") == (0, 0)
    for name in ("second", "third"):
        cached, copies = play(scheduler, worker, name)
        assert cached == 13_952 and copies > 0
        check_integrity(scheduler.kv_cache_manager)
    scheduler.schedule()  # the step behind the last one: its sources can go
    assert scheduler.reset_prefix_cache()
    check_drained(scheduler.kv_cache_manager)


def test_every_scheduler_says_that_a_step_has_run(scheduler):
    """Beside a connector copy sources are held until then."""
    manager = scheduler.kv_cache_manager
    ledger = manager.coordinator.ledger
    ledger.has_connector = True
    worker = ShadowWorker(scheduler)
    play(scheduler, worker, "first")
    _, copies = play(scheduler, worker, "second")
    assert copies > 0 and not ledger.sources()
    check_integrity(manager)
