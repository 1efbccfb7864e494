# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py): what AscendStore is told, and its keys."""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import supports_hma
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.e2e.core.conftest import switch  # noqa: F401
from tests.upstream.store_client import StoreClient
from vllm_ascend.core.connectors.connector_rules import (
    KNOWS_GRANULES,
    check_row_layout,
    declared,
)
from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store import (  # type: ignore[import-not-found]
    config_data,
    pool_scheduler,
    pool_worker,
)
from vllm_ascend.dry_run import scheduler as replay_scheduler
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler
from vllm_ascend.releases import running_release

BEST = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1", "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
_TRANSFER = KVTransferConfig(
    kv_connector="AscendStoreConnector",
    kv_connector_module_path=(
        "vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.ascend_store_connector"
    ),
    kv_role="kv_both",
    kv_connector_extra_config={"backend": "nothing"},
)


class Nothing(StoreClient):
    """A store that is never asked."""


@pytest.fixture(autouse=True)
def no_host(monkeypatch):
    one = SimpleNamespace(world_size=1, rank_in_group=0)
    for name in (
        "get_tensor_model_parallel_rank",
        "get_decode_context_model_parallel_rank",
    ):
        monkeypatch.setattr(pool_worker, name, lambda: 0)
    for name in (
        "get_tensor_model_parallel_world_size",
        "get_decode_context_model_parallel_world_size",
    ):
        monkeypatch.setattr(pool_worker, name, lambda: 1)
    monkeypatch.setattr(pool_worker, "get_pcp_group", lambda: one)
    backend = {"name": "Nothing", "path": __name__}
    monkeypatch.setitem(pool_worker.backend_map, "nothing", backend)


def both_halves(rows: int, hash_block_size: int | None = None) -> tuple[Any, Any]:
    """Return AscendStore's scheduler and worker for DeepSeek-V4 on A3."""
    layout = dsv4_flash_a3(rows, compress_ratios=(0, 4, 128))
    options = SchedulerOptions(num_blocks=2000, max_model_len=4096)
    kv_cache_config = build_scheduler(layout, options).kv_cache_config
    config = replay_scheduler._vllm_config(layout, options)
    config.kv_transfer_config = _TRANSFER
    config.cache_config.block_size = rows
    config.cache_config.hash_block_size = hash_block_size
    scheduler = pool_scheduler.KVPoolScheduler(config, False, kv_cache_config)
    worker = pool_worker.KVPoolWorker(config, False, kv_cache_config)
    assert config.cache_config.hash_block_size == hash_block_size
    return scheduler, worker


def test_the_connector_knows_granules():
    assert KNOWS_GRANULES in declared(_TRANSFER)


@pytest.mark.parametrize("rows", [128, 32])
@pytest.mark.parametrize("explicit", [None, 128])
def test_it_is_told_the_real_hash_granularity(switch, rows, explicit):
    """Upstream takes 8 or 2 for granted, and refuses an explicit 128."""
    switch(BEST)
    scheduler, worker = both_halves(rows, explicit)
    assert scheduler.hash_block_size == worker.hash_block_size == 128
    assert worker.token_database.hash_block_size == 128


def test_stock_hashes_are_told_too(switch):
    switch({"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"})
    scheduler, worker = both_halves(128)
    assert scheduler.hash_block_size == worker.token_database.hash_block_size == 8


HASHES = [bytes([i]) * 32 for i in range(4)]


def keys(worker: Any, group_id: int, hashes: list[Any], block_ids: list[int]) -> dict[int, str]:
    """Return the keys of 512 tokens, by block id."""
    database, told = worker.token_database, (512, hashes, block_ids)
    if hasattr(database, "process_tokens_with_block_ids"):
        found = database.process_tokens_with_block_ids(*told, kv_cache_group_id=group_id)
        return {block_id: key.to_string() for _, _, key, block_id in found}
    found = database.process_token_key_strings_with_block_ids(*told, kv_cache_group_id=group_id)
    return {block_id: key for _, _, key, _, block_id in found}


def group_of(worker: Any, rows: int) -> int:
    return worker.original_block_size.index(rows)


def test_every_state_block_of_a_granule_has_a_key_of_its_own(switch):
    switch(BEST)
    _, worker = both_halves(128)
    found = keys(worker, group_of(worker, 8), HASHES, list(range(1, 65)))
    assert len(found) == len(set(found.values())) == 64
    # The scheduler asks with hashes in hexadecimal.
    as_text = [name.hex() for name in HASHES]
    assert keys(worker, group_of(worker, 8), as_text, list(range(1, 65))) == found


def test_null_blocks_are_neither_stored_nor_loaded(switch):
    switch(BEST)
    _, worker = both_halves(128)
    assert set(keys(worker, group_of(worker, 8), HASHES, [0] * 62 + [7, 8])) == {7, 8}


def test_engines_with_other_block_sizes_do_not_find_each_others_pages(switch):
    switch(BEST)
    everything = []
    for rows in (128, 32):
        _, worker = both_halves(rows)
        blocks = list(range(1, 513))
        for group_id in range(len(worker.original_block_size)):
            everything += list(keys(worker, group_id, HASHES, blocks).values())
    assert len(everything) == len(set(everything)) > 100


def test_a_hash_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"hash_block_size \(128\).*\(48\)"):
        config_data.get_block_hashes(HASHES, 48, 128)


# A MultiConnector without hybrid allocation is refused whatever it holds.
@pytest.mark.parametrize("inside_another", (False, True)[: 1 + supports_hma(MultiConnector)])
@pytest.mark.parametrize(
    "setting", ({"use_layerwise": True}, {"discard_partial_chunks": False}, {"prefill_pp_size": 2})
)
def test_what_a_connector_cannot_be_told_is_refused_by_its_name(setting, inside_another):
    def check(told: dict[str, Any]) -> None:
        store = {
            "kv_connector": "AscendStoreConnector",
            "kv_connector_module_path": (
                "vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.ascend_store_connector"
            ),
            "kv_role": "kv_both",
            "kv_connector_extra_config": told,
        }
        config = KVTransferConfig(**store)
        if inside_another:
            config = KVTransferConfig(
                kv_connector="MultiConnector",
                kv_role="kv_both",
                kv_connector_extra_config={"connectors": [store]},
            )
        check_row_layout(
            config,
            "--kv-transfer-config",
            hybrid_is_off=False,
            needed_settings=running_release().needed_settings,
        )

    (key, value), backend = *setting.items(), {"backend": "mooncake"}
    with pytest.raises(ValueError, match=f'AscendStoreConnector with "{key}": .* DeepSeek-V4'):
        check(backend | setting)
    opposite = 1 if key == "prefill_pp_size" else not value
    for allowed in ({}, {key: opposite}):
        check(backend | allowed)
