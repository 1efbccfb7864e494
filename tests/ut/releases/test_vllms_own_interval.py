# SPDX-License-Identifier: Apache-2.0
"""A retention interval, on a vLLM that reads the variable itself: whose is it?"""

from __future__ import annotations

import pytest
from vllm.v1.core import kv_cache_coordinator as vllms

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.e2e.core import layouts
from vllm_ascend import prefix_cache_config
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler
from vllm_ascend.prefix_cache_config import is_left_to_vllm, load_config
from vllm_ascend.releases import running_release

RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
APPLY = "VLLM_ASCEND_APPLY_DSV4_PATCH"
PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE"
SPARE = "VLLM_ASCEND_SPARE_TAILS"
WHERE_VLLM_READS_IT = pytest.mark.skipif(
    not running_release().reads_retention_variable, reason="this vLLM does not know the variable"
)

# With nothing of ours switched on.
VLLMS = (
    {RETENTION: "64"},
    {RETENTION: "0"},
    {RETENTION: "-64"},
    {RETENTION: "64k"},
    {RETENTION: "64", PROFILE: "stock", APPLY: "0", SPARE: "0"},
)
OURS = (
    {},
    {RETENTION: ""},
    {RETENTION: "auto"},
    {RETENTION: "64", APPLY: "1"},
    {RETENTION: "64", SPARE: "1"},
    {RETENTION: "64", PROFILE: "best"},
)


@pytest.fixture
def reading_vllm(monkeypatch):
    """The configuration beside a vLLM that reads the variable."""
    monkeypatch.setattr(prefix_cache_config, "_vllm_reads_retention", lambda: True)
    prefix_cache_config._parse.cache_clear()
    yield
    prefix_cache_config._parse.cache_clear()


@pytest.mark.parametrize("environment", VLLMS)
def test_alone_it_is_vllms_affair_whatever_its_value(reading_vllm, environment):
    assert is_left_to_vllm(environment)
    assert load_config(environment) == PrefixCacheConfig()


@pytest.mark.parametrize("environment", OURS)
def test_beside_a_switch_of_ours_or_with_a_value_of_ours_it_is_ours(reading_vllm, environment):
    assert not is_left_to_vllm(environment)
    interval = environment.get(RETENTION)
    if interval:
        assert str(load_config(environment).retention) == interval


def test_beside_a_switch_of_ours_a_bad_value_is_refused_in_our_words(reading_vllm):
    with pytest.raises(ValueError, match=rf"{RETENTION}='64k' is invalid: allowed are 'auto', 0"):
        load_config({RETENTION: "64k", APPLY: "1"})


def test_where_vllm_does_not_read_it_it_is_always_ours(monkeypatch):
    monkeypatch.setattr(prefix_cache_config, "_vllm_reads_retention", lambda: False)
    prefix_cache_config._parse.cache_clear()
    assert load_config({RETENTION: "64"}).retention == 64
    prefix_cache_config._parse.cache_clear()


@WHERE_VLLM_READS_IT
def test_alone_it_leaves_vllms_coordinator_in_force(monkeypatch):
    monkeypatch.setenv(RETENTION, "64")
    coordinator = build_coordinator()
    assert type(coordinator) is vllms.HybridKVCacheCoordinator
    assert coordinator.retention_interval == 64


@WHERE_VLLM_READS_IT
def test_alone_a_bad_value_is_refused_in_vllms_words(monkeypatch):
    for value in ("-64", "7"):
        monkeypatch.setenv(RETENTION, value)
        with pytest.raises(ValueError, match="must be non-negative and a multiple of scheduler_"):
            build_coordinator()


@WHERE_VLLM_READS_IT
def test_beside_a_switch_of_ours_our_coordinator_is_in_force(monkeypatch):
    monkeypatch.setenv(RETENTION, "64")
    monkeypatch.setenv(APPLY, "1")
    coordinator = build_coordinator()
    assert isinstance(coordinator, AscendHybridKVCacheCoordinator)
    assert coordinator.local_kv_retention_interval == 64


def build_coordinator():
    options = SchedulerOptions(num_blocks=500, max_model_len=1024)
    return build_scheduler(layouts.gemma_like(), options).kv_cache_manager.coordinator
