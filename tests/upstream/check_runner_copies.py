# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py) whose runner makes block copies: whole blocks move.

vllm-ascend's runner allocates what vllm-ascend has planned, for layers with vllm-ascend's specs.
"""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

import vllm_ascend.patch.platform
import vllm_ascend.patch.worker  # noqa: F401 - installs the patches
from tests.upstream.fixtures import without_npu  # noqa: F401
from vllm_ascend.attention.dsa_v1 import AscendDSABackend
from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.dry_run import scheduler as replay_scheduler
from vllm_ascend.dry_run.layouts import DRAFT_LAYERS, dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

NUM_BLOCKS = 4
BOTH = SOURCE, DESTINATION = 1, 3


@pytest.fixture(params=(128, 64, 32))
def config(request, without_npu) -> KVCacheConfig:
    """What a worker is told to allocate."""
    layout = dsv4_flash_a3(request.param, num_draft_layers=DRAFT_LAYERS["dspark"])
    vllm_config = replay_scheduler._vllm_config(layout, SchedulerOptions(num_blocks=NUM_BLOCKS))
    groups = kv_cache_utils.get_kv_cache_groups(vllm_config, dict(layout.specs))
    memory = kv_cache_utils._pool_bytes_per_block(groups) * NUM_BLOCKS
    return kv_cache_utils.get_kv_cache_config_from_groups(vllm_config, groups, memory)


@pytest.fixture
def runner(config: KVCacheConfig) -> NPUModelRunner:
    """Of the real class, with what the allocation of DeepSeek-V4's caches reads, and no model."""
    made = object.__new__(NPUModelRunner)
    made.vllm_config = SimpleNamespace(kv_transfer_config=None)
    made.model_config = SimpleNamespace(hf_text_config=SimpleNamespace(model_type="deepseek_v4"))
    made.ascend_config = SimpleNamespace(kvpp_config=SimpleNamespace(size=1))
    made.device = torch.device("cpu")
    made.use_compress, made.use_sparse, made.dcp_size = True, False, 1
    made.sparse_kv_offload_enabled = made.use_async_scheduling = False
    made.runner_only_attn_layers = set()
    made._is_c8_mxfp_kv_cache = lambda spec: False
    made._kv_cache_spec_attn_group_iterator = lambda: [
        SimpleNamespace(
            kv_cache_group_id=number,
            backend=AscendDSABackend,
            kv_cache_spec=group.kv_cache_spec,
            layer_names=group.layer_names,
        )
        for number, group in enumerate(config.kv_cache_groups)
    ]
    return made


def views_of(runner: NPUModelRunner, config: KVCacheConfig) -> dict[str, list[torch.Tensor]]:
    """Allocate as the runner does; return what each layer reads and writes."""
    raw = runner._allocate_kv_cache_tensors(config)
    caches = runner._reshape_kv_cache_tensors(config, raw)
    runner.kv_cache_config = config
    runner.kv_caches = [caches[name] for name in sorted(caches, key=extract_layer_index)]
    runner._apply_pp_sampled_tokens_from_scheduler_output = lambda output: None
    runner._track_tmp_encoder_cache_refs = lambda output: None
    return {name: list(parts) for name, parts in caches.items()}


def step_with_copy(runner: NPUModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    output = SimpleNamespace(
        scheduled_cached_reqs=SimpleNamespace(req_ids=()),
        new_block_ids_to_zero=[],
        kv_cache_block_copies=[KVCacheBlockCopy(SOURCE, DESTINATION)],
    )
    monkeypatch.setattr("vllm_ascend.worker.model_runner_v1.replace", lambda output, **_: output)
    monkeypatch.setattr(GPUModelRunner, "_update_states", lambda self, output: None)
    runner._update_states(output)


def check_that_whole_blocks_move(
    runner: NPUModelRunner,
    config: KVCacheConfig,
    views: dict[str, list[torch.Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Copy a block of each group; compare all rows that the group's layers have in it."""
    generator = torch.Generator().manual_seed(0)
    for group in config.kv_cache_groups:
        parts = [part for name in group.layer_names for part in views[name]]
        for part in parts:
            rows = torch.randint(-100, 100, part[SOURCE].shape, generator=generator)
            part[SOURCE].copy_(rows)
            part[DESTINATION].zero_()
        step_with_copy(runner, monkeypatch)
        for part in parts:
            assert torch.equal(*(part[n].contiguous().view(torch.uint8) for n in BOTH))


def test_a_copy_moves_all_rows_of_a_block_whichever_group_it_is_of(runner, config, monkeypatch):
    views = views_of(runner, config)
    assert len(views) == sum(len(group.layer_names) for group in config.kv_cache_groups)
    check_that_whole_blocks_move(runner, config, views, monkeypatch)


def test_tensors_that_are_left_out_are_noticed(runner, config, monkeypatch):
    """Planted: the drafts' window is in no tensor of another layer."""
    views = views_of(runner, config)
    drafts = {part.data_ptr() for name in views if "mtp" in name for part in views[name]}
    runner.kv_caches = [c for c in runner.kv_caches if c[0].data_ptr() not in drafts]
    with pytest.raises(AssertionError):
        check_that_whole_blocks_move(runner, config, views, monkeypatch)
