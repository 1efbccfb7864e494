# SPDX-License-Identifier: Apache-2.0
"""The class that is put over schedulers: over which, where, and that it stands outermost."""

from __future__ import annotations

import inspect
import pickle

import pytest
from vllm.config import SchedulerConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.core.sched.scheduler import Scheduler

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.e2e.core import layouts
from vllm_ascend.core.scheduler import CachingScheduler, our_coordinator, with_caching
from vllm_ascend.dry_run import scheduler as dry_run
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler
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
    assert type(built(is_async=is_async)) is (AsyncScheduler if is_async else Scheduler)


@pytest.mark.parametrize("is_async", [False, True])
def test_with_our_coordinator_it_is_put_over_the_chosen_class(is_async, monkeypatch):
    monkeypatch.setenv(PROFILE, "best")
    scheduler = built(is_async=is_async)
    plain = AsyncScheduler if is_async else Scheduler
    assert our_coordinator(scheduler) is not None
    assert type(scheduler).__mro__[1:3] == (CachingScheduler, plain)
    assert isinstance(scheduler, plain) and isinstance(scheduler, SchedulerInterface)
    assert type(scheduler).__qualname__ == plain.__qualname__
    assert type(scheduler) is with_caching(plain), "one class per class, however many schedulers"


def test_over_a_class_of_somebody_elses_whose_methods_call_no_super(monkeypatch):
    """vllm-ascend's recompute scheduler overrides a step's end without vLLM's."""
    monkeypatch.setenv(PROFILE, "best")
    calls = []

    class Theirs(Scheduler):
        def _update_after_schedule(self, scheduler_output):
            calls.append(self.kv_cache_manager.coordinator.ledger._dispatched is not None)

    monkeypatch.setattr(dry_run, "Scheduler", Theirs)
    scheduler = built()
    assert isinstance(scheduler, Theirs) and isinstance(scheduler, CachingScheduler)
    scheduler.schedule()
    assert calls == [True]


def test_the_class_that_configurations_name_stays_vllms():
    """It is what travels between processes, by its name."""
    config = SchedulerConfig(max_model_len=4096, is_encoder_decoder=False)
    assert pickle.loads(pickle.dumps(config)).get_scheduler_cls() is config.get_scheduler_cls()
    assert not issubclass(config.get_scheduler_cls(), CachingScheduler)


def test_every_method_overrides_one_of_vllms():
    """Whatever else it needs is a function beside it: a new name could meet one of vLLM's."""
    methods = [name for name, value in vars(CachingScheduler).items() if inspect.isfunction(value)]
    absent = {target.rpartition(".")[2] for target in running_release().absent}
    assert methods and all(name in vars(Scheduler) or name in absent for name in methods)
