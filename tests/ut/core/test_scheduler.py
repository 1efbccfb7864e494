# SPDX-License-Identifier: Apache-2.0
"""The class that is put over schedulers: over which, where, and that it stands outermost."""

from __future__ import annotations

import inspect
import pickle

import pytest
from vllm.config import SchedulerConfig
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched import scheduler as vllm_scheduler
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.core.sched.scheduler import Scheduler

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.e2e.core import layouts
from vllm_ascend.core.kv_cache_manager import CachingKVCacheManager
from vllm_ascend.core.scheduler import CachingScheduler, our_coordinator
from vllm_ascend.dry_run import scheduler as dry_run
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.prefix_cache_config import VARIABLES
from vllm_ascend.releases import running_release

PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)


def built(*, is_async: bool = False) -> Scheduler:
    options = SchedulerOptions(num_blocks=100, max_model_len=96, async_scheduling=is_async)
    return build_scheduler(layouts.gemma_like(4, 9), options)


@pytest.mark.parametrize("is_async", [False, True])
def test_with_nothing_set_it_is_vllms_own_class(is_async):
    scheduler = built(is_async=is_async)
    assert type(scheduler) is (AsyncScheduler if is_async else Scheduler)
    assert type(scheduler.kv_cache_manager) is KVCacheManager


@pytest.mark.parametrize("is_async", [False, True])
def test_with_our_coordinator_it_is_put_over_the_chosen_class(is_async, monkeypatch):
    monkeypatch.setenv(PROFILE, "best")
    scheduler = built(is_async=is_async)
    plain = AsyncScheduler if is_async else Scheduler
    assert our_coordinator(scheduler) is not None
    assert type(scheduler).__mro__[1:3] == (CachingScheduler, plain)
    assert isinstance(scheduler, plain) and isinstance(scheduler, SchedulerInterface)
    assert type(scheduler).__qualname__ == plain.__qualname__
    manager = scheduler.kv_cache_manager
    assert type(manager).__mro__[1:3] == (CachingKVCacheManager, KVCacheManager)
    another = built(is_async=is_async)
    assert type(scheduler) is type(another), "one class per class, however many schedulers"
    assert type(manager) is type(another.kv_cache_manager)


def test_over_a_class_of_somebody_elses_whose_methods_call_no_super(monkeypatch):
    """vllm-ascend's recompute scheduler overrides a step's end without vLLM's."""
    monkeypatch.setenv(PROFILE, "best")
    calls = []

    class TheirManager(KVCacheManager):
        pass

    class Theirs(Scheduler):
        def _update_after_schedule(self, scheduler_output):
            calls.append(self.kv_cache_manager.coordinator.ledger._dispatched is not None)

    monkeypatch.setattr(dry_run, "Scheduler", Theirs)
    monkeypatch.setattr(vllm_scheduler, "KVCacheManager", TheirManager)
    scheduler = built()
    assert isinstance(scheduler, Theirs) and isinstance(scheduler, CachingScheduler)
    manager = scheduler.kv_cache_manager
    assert isinstance(manager, TheirManager) and isinstance(manager, CachingKVCacheManager)
    scheduler.schedule()
    assert calls == [True]


def test_the_class_that_configurations_name_stays_vllms():
    """It is what travels between processes, by its name."""
    config = SchedulerConfig(max_model_len=4096, is_encoder_decoder=False)
    assert pickle.loads(pickle.dumps(config)).get_scheduler_cls() is config.get_scheduler_cls()
    assert not issubclass(config.get_scheduler_cls(), CachingScheduler)


def test_every_method_overrides_one_of_vllms():
    """Whatever else it needs is a function beside it: a new name could meet one of vLLM's."""
    absent = {target.rpartition(".")[2] for target in running_release().absent}
    for ours, theirs in ((CachingScheduler, Scheduler), (CachingKVCacheManager, KVCacheManager)):
        methods = [name for name, value in vars(ours).items() if inspect.isfunction(value)]
        assert methods and all(name in vars(theirs) or name in absent for name in methods)


def test_a_manager_without_a_scheduler_is_one_of_ours_and_is_told_the_alignment(monkeypatch):
    """As vLLM's own tests build it."""
    monkeypatch.setenv(PROFILE, "best")
    scheduler = built()
    request = make_request(scheduler, "r", [1] * 40, 1)
    manager = KVCacheManager(
        scheduler.kv_cache_config, max_model_len=96, hash_block_size=4, scheduler_block_size=8
    )
    assert isinstance(manager, CachingKVCacheManager)
    assert not any(manager.take_kv_cache_block_copies() or ())
    manager.get_computed_blocks(request)
    assert manager.coordinator.ledger.records["r"].num_hit_tokens == 0
