# SPDX-License-Identifier: Apache-2.0
"""Two engines compare their KV cache layouts before pages move."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS
from vllm_ascend.dry_run import scheduler as replay_scheduler
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler
from vllm_ascend.kv_transfer.layout_contract import (
    ContractError,
    GroupContract,
    KVTransferContract,
    check,
    describe,
)

CONTRACT = KVTransferContract(
    block_size=128,
    layout="rows",
    granule=128,
    groups=(
        GroupContract("compressed 4:1", 512, 131072),
        GroupContract("sliding window 128", 128, 131072),
    ),
    hash_block_size=128,
    hash_algorithm="sha256",
)


def test_equal_contracts_pass():
    check(CONTRACT, replace(CONTRACT))


def test_every_difference_is_named_in_one_error():
    group = replace(CONTRACT.groups[0], tokens_per_block=128, page_bytes=32768)
    other = replace(CONTRACT, block_size=32, groups=(group, CONTRACT.groups[1]))
    with pytest.raises(ContractError) as error:
        check(CONTRACT, other, remote_name="prefill engine p0")
    message = str(error.value)
    assert "prefill engine p0" in message and "\n" not in message
    for part in (
        "block_size 128 here, 32 there",
        "group 0 (compressed 4:1) tokens_per_block 512 here, 128 there",
        "group 0 (compressed 4:1) page_bytes 131072 here, 32768 there",
        "--block-size",
    ):
        assert part in message


@pytest.mark.parametrize(
    "change", [{"layout": "tokens"}, {"granule": 64}, {"groups": CONTRACT.groups[:1]}]
)
def test_any_other_layout_is_refused(change):
    with pytest.raises(ContractError, match=next(iter(change)).removesuffix("s")):
        check(CONTRACT, replace(CONTRACT, **change))


def test_names_of_blocks_need_not_agree():
    """Mooncake hands pages over by block id."""
    for change in ({"hash_block_size": 8}, {"hash_algorithm": "xxhash"}):
        check(CONTRACT, replace(CONTRACT, **change))


@pytest.mark.parametrize("name", ["weights", "drafts", "computed_with"])
def test_rows_of_another_model_are_refused_where_both_sides_can_tell(name):
    known = replace(CONTRACT, **{name: "one"})
    check(known, replace(CONTRACT, **{name: "one"}))
    check(known, CONTRACT)
    check(CONTRACT, known)
    with pytest.raises(ContractError, match=f"{name} one here, other there"):
        check(known, replace(CONTRACT, **{name: "other"}))


def test_it_travels_as_json():
    travelled = json.loads(json.dumps(CONTRACT.to_dict()))
    assert KVTransferContract.from_dict(travelled) == CONTRACT


@pytest.mark.parametrize("values", [{}, {"groups": [{"kind": "x"}]}, {"groups": 1}])
def test_what_another_version_wrote_is_refused(values):
    with pytest.raises(ContractError, match="unreadable"):
        KVTransferContract.from_dict(values)


def described(rows: int, monkeypatch) -> KVTransferContract:
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    options = SchedulerOptions(num_blocks=2000, max_model_len=4096)
    scheduler = build_scheduler(dsv4_flash_a3(rows), options)
    config = replay_scheduler._vllm_config(dsv4_flash_a3(rows), options)
    config.cache_config = SimpleNamespace(
        **{**vars(config.cache_config), "block_size": rows, "enable_prefix_caching": True}
    )
    return describe(scheduler.kv_cache_config, config)


@WHERE_BLOCKS_COUNT_ROWS
def test_dummy_weights_are_not_compared_and_quantization_is(monkeypatch):
    contract = described(128, monkeypatch)
    assert contract.weights == contract.drafts == ""
    assert '"--quantization": null' in contract.computed_with


@WHERE_BLOCKS_COUNT_ROWS
def test_deepseek_v4_at_block_size_128(monkeypatch):
    contract = described(128, monkeypatch)
    assert (contract.layout, contract.granule) == ("rows", 128)
    tokens = {group.kind: group.tokens_per_block for group in contract.groups}
    assert tokens["compressed 4:1"] == 512 and tokens["compressed 128:1"] == 16384
    assert tokens["sliding window 128"] == 128
    check(contract, described(128, monkeypatch))
    with pytest.raises(ContractError, match="tokens_per_block 512 here, 128 there"):
        check(contract, described(32, monkeypatch))
