# SPDX-License-Identifier: Apache-2.0
"""The configured block size in every process, with EngineCore's own start-up code.

The executor is a stand-in: it only has to report specs and memory, as workers on an NPU would.
"""

from types import SimpleNamespace

import pytest
from vllm.config import CacheConfig, KVTransferConfig, set_current_vllm_config
from vllm.v1.engine.core import EngineCore

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from vllm_ascend.core.layout.block_sizes import dsv4_compressed_block_size
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.dry_run import scheduler as factory
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.patch.platform.patch_kv_cache_interface import get_dsv4_compressed_kv_block_size
from vllm_ascend.tier import connector


class Executor:
    """Reports one worker's specs and memory, and remembers with what it is configured."""

    def __init__(self, vllm_config, layout, gib: int = 16) -> None:
        self._vllm_config = vllm_config
        self._layout, self._gib = layout, gib
        self.block_size_seen: int | None = None
        self.num_blocks = 0

    def get_kv_cache_specs(self):
        return [dict(self._layout.specs)]

    def determine_available_memory(self):
        return [self._gib << 30]

    def initialize_from_config(self, kv_cache_configs) -> None:
        self.num_blocks = kv_cache_configs[0].num_blocks
        self.block_size_seen = self._vllm_config.cache_config.block_size


def start_up(block_size: int) -> Executor:
    layout = dsv4_flash_a3(block_size)
    vllm_config = factory._vllm_config(layout, SchedulerOptions(kv_memory_bytes=1))
    executor = Executor(vllm_config, layout)
    engine = SimpleNamespace(model_executor=executor)
    EngineCore._initialize_kv_caches(engine, vllm_config)
    assert vllm_config.cache_config.block_size == executor.block_size_seen
    return executor


@pytest.mark.parametrize("block_size", [32, 64, 128])
def test_the_configured_block_size_survives_start_up(block_size, monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    assert start_up(block_size).block_size_seen == block_size


def test_unset_keeps_what_vllm_does(monkeypatch):
    """Without the switch EngineCore overwrites the size with the smallest group's, as ever."""
    monkeypatch.delenv("VLLM_ASCEND_APPLY_DSV4_PATCH", raising=False)
    assert start_up(128).block_size_seen == 8


def tier(**settings) -> dict:
    settings = {"backend": "host", "gib": 1, **settings}
    return {
        "kv_connector": "GranuleTierConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": settings,
    }


def blocks(gib: int, transfer: dict | None, **of_cache) -> int:
    """Return the blocks of an engine whose devices have so much memory left."""
    layout = dsv4_flash_a3(128)
    vllm_config = factory._vllm_config(layout, SchedulerOptions(kv_memory_bytes=1))
    vllm_config.kv_transfer_config = KVTransferConfig(**transfer) if transfer else None
    for name, value in of_cache.items():
        setattr(vllm_config.cache_config, name, value)
    executor = Executor(vllm_config, layout, gib)
    EngineCore._initialize_kv_caches(SimpleNamespace(model_executor=executor), vllm_config)
    return executor.num_blocks


def test_what_a_tiers_buffers_take_of_a_device_is_not_the_kv_caches(monkeypatch):
    """Nobody here has an NPU: the platform is told to be none that computes on the host."""
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    monkeypatch.setattr(connector, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    of_several = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [tier()]},
    }
    assert blocks(16, tier()) == blocks(16, of_several) == blocks(15, None)
    assert blocks(16, tier(staging_mib=512)) == blocks(14, None)
    assert blocks(16, tier(), kv_cache_memory_bytes=16 << 30) == blocks(16, None)


def test_on_a_host_buffers_take_no_device_memory(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    assert blocks(16, tier()) == blocks(16, None)


def test_rows_per_block_follow_the_environment_or_the_command_line():
    def rows(configured: int | None, explicit: int | None) -> int:
        cache_config = CacheConfig(block_size=explicit) if explicit else CacheConfig()
        config = PrefixCacheConfig(dsv4_compressed_kv_block_size=configured)
        return dsv4_compressed_block_size(config, cache_config)

    assert rows(None, None) == 128
    assert rows(None, 32) == 32
    assert rows(64, None) == 64
    assert rows(64, 64) == 64
    with pytest.raises(ValueError, match=r"BLOCK_SIZE=64 contradicts --block-size 128"):
        rows(64, 128)
    with pytest.raises(ValueError, match=r"--block-size 16 is invalid .* 32, 64, 128"):
        rows(None, 16)


@pytest.mark.parametrize("ratio", [0, 1, 4, 128])
def test_the_public_function_gives_rows_for_every_ratio(ratio, monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE", "32")
    assert get_dsv4_compressed_kv_block_size(ratio) == 32


def test_the_public_function_reads_the_engines_block_size(monkeypatch):
    monkeypatch.delenv("VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE", raising=False)
    assert get_dsv4_compressed_kv_block_size(4) == 128
    layout = dsv4_flash_a3(64)
    with set_current_vllm_config(factory._vllm_config(layout, SchedulerOptions(kv_memory_bytes=1))):
        assert get_dsv4_compressed_kv_block_size(4) == 64


def test_an_unknown_ratio_is_refused():
    with pytest.raises(ValueError, match=r"compress_ratio \(8\) must be 0, 1, 4 or 128"):
        get_dsv4_compressed_kv_block_size(8)


@pytest.mark.parametrize(
    "connectors, resets",
    [
        (["GranuleTierConnector"], 1),
        (["ExampleConnector", "GranuleTierConnector"], 1),
        (["ExampleConnector"], 0),
        ([], 0),
    ],
)
def test_an_engine_that_sleeps_resets_its_tier_and_no_other_connector(connectors, resets):
    parts = [{"kv_connector": name, "kv_role": "kv_both"} for name in connectors]
    transfer = KVTransferConfig(**parts[0]) if parts else None
    if len(parts) > 1:
        extra = {"connectors": parts}
        transfer = KVTransferConfig(
            kv_connector="MultiConnector", kv_role="kv_both", kv_connector_extra_config=extra
        )
    done: list[str] = []
    engine = SimpleNamespace(
        vllm_config=SimpleNamespace(kv_transfer_config=transfer),
        scheduler=SimpleNamespace(reset_connector_cache=lambda: done.append("connector")),
        reset_prefix_cache=lambda reset_running_requests: done.append("cache"),
        reset_mm_cache=lambda: None,
        reset_encoder_cache=lambda: None,
    )
    EngineCore._reset_caches(engine)
    assert done == ["cache"] + ["connector"] * resets
