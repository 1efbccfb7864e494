# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py) whose blocks count tokens: its plans, our coordinator.

vllm-ascend groups and lays out layers with its own specs; the oracle reads every row.
"""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.v1.core.sched.scheduler import Scheduler

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.upstream.fixtures import A3, without_npu  # noqa: F401
from vllm_ascend.core.checks.early_check import check_settings
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec
from vllm_ascend.core.layout.specs import rows_per_block, tokens_per_block
from vllm_ascend.core.single_type_kv_cache_manager import (
    AscendCircularBufferManager,
    get_manager_for_kv_cache_spec,
)
from vllm_ascend.distributed.kv_transfer import register_connector
from vllm_ascend.dry_run import scheduler as replay_scheduler
from vllm_ascend.dry_run.layouts import DRAFT_LAYERS, dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.models.layer.attention.layer import DSV4_BLOCK_SIZES
from vllm_ascend.patch.platform import patch_kv_cache_coordinator as theirs
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import running_release
from vllm_ascend_evaluation.oracle.integrity import check_integrity
from vllm_ascend_evaluation.oracle.worker import ShadowWorker

GRANULE = 128
BEST = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
BLOCK_SIZES = pytest.mark.parametrize("block_size", (128, 64, 32))


@pytest.fixture
def switches(monkeypatch, without_npu):
    """Return what sets the switches of the prefix cache."""

    def switch(**environment: str) -> None:
        monkeypatch.delenv("VLLM_ASCEND_APPLY_DSV4_PATCH", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return switch


def scheduler_of(block_size: int, drafts: str | None = None, num_drafts: int = 0) -> Scheduler:
    layout = dsv4_flash_a3(block_size, num_draft_layers=DRAFT_LAYERS[drafts or "mtp"])
    options = SchedulerOptions(num_blocks=6000, num_speculative_tokens=num_drafts)
    if drafts is not None:
        options = replace(options, draft_method=drafts)
    return build_scheduler(layout, options)


def hit_when_it_comes_again(scheduler: Scheduler, num_tokens: int) -> int:
    """Serve a prompt twice; return the second one's hit in tokens."""
    worker = ShadowWorker(scheduler)
    prompt = [num_tokens + token for token in range(num_tokens)]
    hit = 0
    for turn in ("first", "second"):
        scheduler.add_request(make_request(scheduler, f"{turn}-{num_tokens}", prompt, 4))
        while scheduler.requests:
            output = scheduler.schedule()
            hit = sum((r.num_computed_tokens for r in output.scheduled_new_reqs), hit)
            scheduler.update_from_output(output, worker.execute(output))
    check_integrity(scheduler.kv_cache_manager)
    return hit


@BLOCK_SIZES
def test_specs_are_those_of_its_layers(block_size, switches):
    switches(**BEST)
    specs = dsv4_flash_a3(block_size).specs
    rows, pages = DSV4_BLOCK_SIZES[block_size]
    assert (tuple(rows), tuple(pages)) == A3[block_size]
    compressed = [spec for name, spec in specs.items() if name.endswith((".mla", ".k_cache"))]
    assert {type(spec) for spec in compressed} == {AscendMLAAttentionSpec}
    assert {rows_per_block(spec) for spec in compressed} == {rows[0]}
    assert {tokens_per_block(spec) // rows[0] for spec in compressed} == {4, 128}


@BLOCK_SIZES
@pytest.mark.parametrize(
    ("drafts", "num_drafts", "lost"), [(None, 0, 0), ("mtp", 1, GRANULE), ("dspark", 7, 0)]
)
def test_a_prompt_that_comes_again_hits_all_but_its_end(
    block_size, drafts, num_drafts, lost, switches
):
    switches(**BEST)
    scheduler = scheduler_of(block_size, drafts, num_drafts)
    assert isinstance(scheduler.kv_cache_manager.coordinator, AscendHybridKVCacheCoordinator)
    for num_tokens in (129, 300, 5000, 14_000):
        whole = (num_tokens - 1) // GRANULE * GRANULE
        assert hit_when_it_comes_again(scheduler, num_tokens) == max(whole - lost, 0)


def test_with_nothing_set_vllm_ascends_own_coordinator_serves(switches):
    switches()
    coordinator = scheduler_of(128).kv_cache_manager.coordinator
    assert type(coordinator) is theirs.AscendHybridKVCacheCoordinator


def test_other_models_with_its_specs_are_left_to_it(switches):
    """DeepSeek-V4.1 hits at every 128 tokens without us, and replays where it has to."""
    switches(**BEST)
    specs = [SimpleNamespace(prefix_cacheable=True, model_version="deepseek_v41")]
    assert running_release().why_left_to_vllm(specs)


def test_its_store_is_refused_before_an_engine_starts(switches):
    switches(**BEST)
    if "MooncakeHybridConnector" not in KVConnectorFactory._registry:
        register_connector()
    layout = dsv4_flash_a3(128)
    vllm_config = replay_scheduler._vllm_config(layout, SchedulerOptions(num_blocks=1))
    vllm_config.model_config.hf_text_config.model_type = "deepseek_v4"
    for connector in (None, "MooncakeHybridConnector", "GranuleTierConnector"):
        vllm_config.kv_transfer_config = connector and KVTransferConfig(
            kv_connector=connector, kv_role="kv_both"
        )
        check_settings(vllm_config, load_config(), running_release())
    vllm_config.kv_transfer_config = KVTransferConfig(
        kv_connector="AscendStoreConnector", kv_role="kv_both"
    )
    with pytest.raises(ValueError, match=r"AscendStoreConnector .* tier takes its place"):
        check_settings(vllm_config, load_config(), running_release())


def test_names_of_both_are_there():
    ours = get_manager_for_kv_cache_spec.__module__
    assert AscendCircularBufferManager.__module__ == ours.replace(
        "group_managers", "single_type_kv_cache_manager"
    )
