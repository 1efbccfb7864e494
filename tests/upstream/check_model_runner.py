# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py): the NPU runner allocates pages that can be copied."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

import vllm_ascend.patch.platform
import vllm_ascend.patch.worker  # noqa: F401 - installs the patches
from tests.ut.worker.flash import flash_config
from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.worker.block_copies import copy_blocks
from vllm_ascend.worker.kv_cache_tensors import KVCacheTensorsError
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

NUM_BLOCKS = 4


@pytest.fixture
def config() -> KVCacheConfig:
    return flash_config(NUM_BLOCKS)


@pytest.fixture
def runner() -> NPUModelRunner:
    made = object.__new__(NPUModelRunner)
    made.vllm_config = SimpleNamespace(kv_transfer_config=None)
    made.device = torch.device("cpu")
    made.use_compress, made.use_sparse = True, True
    made.runner_only_attn_layers = set()
    return made


def test_steps_begin_where_copies_are_made(runner, monkeypatch):
    """Some releases do something in front of vLLM's method, which makes the copies."""
    begun = []
    monkeypatch.setattr(GPUModelRunner, "_update_states", lambda self, output: begun.append(output))
    runner.use_async_scheduling = False
    output = SimpleNamespace(scheduled_cached_reqs=SimpleNamespace(req_ids=()))
    runner._update_states(output)
    assert begun == [output]


def test_a_copy_moves_the_whole_block_in_every_tensor(runner, config):
    raw = runner._allocate_kv_cache_tensors(config)
    pages = runner.kv_cache_pages
    assert len(pages) == len(config.kv_cache_tensors)
    assert {page.shape[0] for page in pages} == {NUM_BLOCKS}
    generator = torch.Generator().manual_seed(0)
    for page in pages:
        page.copy_(torch.randint(-128, 127, page.shape, generator=generator, dtype=torch.int8))
    before = [page.clone() for page in pages]
    copy_blocks(pages, [KVCacheBlockCopy(1, 3)])
    for page, old in zip(pages, before, strict=True):
        assert torch.equal(page[3], old[1])
        assert torch.equal(page[:3], old[:3])
    layer = config.kv_cache_tensors[0].shared_by[0]
    assert raw[layer].data_ptr() in {page.data_ptr() for page in pages}


def test_a_layer_without_a_tensor_is_named(runner, config):
    with pytest.raises(KVCacheTensorsError, match=r"[1-9][0-9]* layers have no tensor"):
        runner._allocate_kv_cache_tensors(
            replace(config, kv_cache_tensors=config.kv_cache_tensors[1:])
        )


def test_a_layer_that_the_runner_does_not_recognise_is_named(runner, config):
    """vllm-ascend tells layers by their names, and asserts in the end without saying which."""
    odd = config.kv_cache_tensors[0].shared_by[0]
    name = odd.replace("attn", "mixer")
    rename = {odd: name}
    groups = [
        KVCacheGroupSpec(
            [rename.get(layer, layer) for layer in group.layer_names],
            replace(
                group.kv_cache_spec,
                kv_cache_specs={
                    rename.get(layer, layer): spec
                    for layer, spec in group.kv_cache_spec.kv_cache_specs.items()
                },
            ),
        )
        for group in config.kv_cache_groups
    ]
    tensors = [
        replace(config.kv_cache_tensors[0], shared_by=[name]),
        replace(config.kv_cache_tensors[0], shared_by=config.kv_cache_tensors[0].shared_by[1:]),
        *config.kv_cache_tensors[1:],
    ]
    with pytest.raises(KVCacheTensorsError, match=name):
        runner._allocate_kv_cache_tensors(
            replace(config, kv_cache_groups=groups, kv_cache_tensors=tensors)
        )
