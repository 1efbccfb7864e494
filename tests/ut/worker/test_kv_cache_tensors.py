# SPDX-License-Identifier: Apache-2.0
"""A plan that does not cover the layers is refused with their names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheTensor

from tests.ut.worker.flash import flash_config
from vllm_ascend.worker.kv_cache_tensors import KVCacheTensorsError, check_layers_are_planned


@pytest.fixture(scope="module")
def config() -> KVCacheConfig:
    return flash_config(10)


def test_the_plan_of_deepseek_v4_covers_its_layers(config):
    check_layers_are_planned(config)


def test_a_lost_tensor_is_named_with_its_layers(config):
    lost = config.kv_cache_tensors[0]
    with pytest.raises(KVCacheTensorsError) as error:
        check_layers_are_planned(replace(config, kv_cache_tensors=config.kv_cache_tensors[1:]))
    message = str(error.value)
    assert f"{len(lost.shared_by)} layers have no tensor" in message
    assert all(name in message for name in lost.shared_by)
    assert "0 layers with a tensor are in no group." in message
    assert f"{len(config.kv_cache_tensors) - 1} tensors" in message


def test_a_tensor_too_many_is_named(config):
    tensors = [*config.kv_cache_tensors, KVCacheTensor(size=1, shared_by=["model.stray.attn"])]
    with pytest.raises(KVCacheTensorsError, match=r"in no group \(model.stray.attn\)"):
        check_layers_are_planned(replace(config, kv_cache_tensors=tensors))


def test_layers_that_the_runner_allocates_itself_need_none(config):
    own = set(config.kv_cache_tensors[0].shared_by)
    check_layers_are_planned(
        replace(config, kv_cache_tensors=config.kv_cache_tensors[1:]), runner_only_layers=own
    )
