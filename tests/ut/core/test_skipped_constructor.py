# SPDX-License-Identifier: Apache-2.0
"""Constructors of ours that do not call vLLM's leave out nothing that vLLM's would have set."""

import inspect
from dataclasses import replace

import pytest
import torch
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    get_request_block_hasher,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.release_marks import with_our_interval
from tests.ut.core.helpers import make_request
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.pool.free_queue import TieredFreeQueue
from vllm_ascend.prefix_cache_config import load_config

SHAPE = dict(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
PLAIN = (bool, int, str, type(None))
MAMBA = MambaSpec(
    block_size=16, shapes=((4, 4),), dtypes=(torch.float32,), mamba_cache_mode="align"
)
SPECS = (FullAttentionSpec(**SHAPE), SlidingWindowSpec(sliding_window=32, **SHAPE), MAMBA)


@pytest.fixture(params=["stock", "ranked"])
def build(request, monkeypatch):
    """Return what builds a coordinator of full attention, windows and Mamba layers."""
    for name, value in with_our_interval(
        {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "0"} if request.param == "ranked" else {}
    ).items():
        monkeypatch.setenv(name, value)
    assert load_config().changes_caching == (request.param == "ranked")

    def coordinator(cls: type[HybridKVCacheCoordinator]) -> HybridKVCacheCoordinator:
        groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(SPECS)]
        told = {
            "kv_cache_config": KVCacheConfig(100, [], groups),
            "max_model_len": 512,
            "max_num_batched_tokens": 256,
            "max_in_flight_tokens": 256,
            "use_eagle": False,
            "enable_caching": True,
            "enable_kv_cache_events": False,
            "dcp_world_size": 1,
            "pcp_world_size": 1,
            "scheduler_block_size": 16,
            "hash_block_size": 16,
        }
        taken = inspect.signature(cls.__init__).parameters
        return cls(**{name: value for name, value in told.items() if name in taken})

    return coordinator


def test_every_attribute_of_a_coordinator_is_there(build):
    vllms, ours = build(HybridKVCacheCoordinator), build(AscendHybridKVCacheCoordinator)
    assert [name for name in vars(vllms) if not hasattr(ours, name)] == []


def test_managers_are_told_what_vllms_constructor_tells_them(build):
    """Which blocks are zeroed before they are written, among others."""
    vllms, ours = build(HybridKVCacheCoordinator), build(AscendHybridKVCacheCoordinator)
    pairs = zip(ours.single_type_managers, vllms.single_type_managers, strict=True)
    for mine, theirs in pairs:
        assert type(mine) is type(theirs)
        told = {name: value for name, value in vars(theirs).items() if isinstance(value, PLAIN)}
        assert {name: getattr(mine, name) for name in told} == told


def test_every_attribute_of_a_free_queue_is_there():
    blocks = [KVCacheBlock(block_id) for block_id in range(3)]
    ours = TieredFreeQueue(blocks)
    assert [name for name in vars(FreeKVCacheBlockQueue(blocks)) if not hasattr(ours, name)] == []


@pytest.mark.skipif(
    not hasattr(KVCacheManager, "get_computed_blocks_for_connector"),
    reason="this vLLM asks for the hits of all groups at once",
)
@pytest.mark.skipif(
    "num_hash_lookahead_tokens" in inspect.signature(KVCacheManager.__init__).parameters,
    reason="this vLLM caches no Mamba states but those that are left to it",
)
def test_a_connector_that_brings_mamba_states_may_ask(monkeypatch):
    """Where there is full attention vLLM asks for the hit of each group, unless told not to."""
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", "best")
    specs = (*SPECS[:2], replace(MAMBA, mamba_cache_mode="none"))
    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]
    manager = KVCacheManager(
        KVCacheConfig(100, [], groups),
        max_model_len=512,
        scheduler_block_size=16,
        hash_block_size=16,
    )
    assert isinstance(manager.coordinator, AscendHybridKVCacheCoordinator)
    request = make_request("a", list(range(64)), get_request_block_hasher(16, sha256))
    blocks, num_tokens, _, is_diverged = manager.get_computed_blocks_for_connector(request)
    assert (blocks.get_block_ids(), num_tokens, is_diverged) == (([], [], []), 0, False)
