# SPDX-License-Identifier: Apache-2.0
"""The layout that a config.json would get, on real schedulers, and settings it contradicts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import vllm_ascend
from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.doctor.findings import LayoutFacts, Severity
from vllm_ascend.doctor.layout import ask_layout, check_layout, layout_of
from vllm_ascend.doctor.layout_child import LayoutRequest, layout_facts
from vllm_ascend.prefix_cache_config import VARIABLES, child_environment

OURS = Path(str(vllm_ascend.__file__)).parent
APPLY = "VLLM_ASCEND_APPLY_DSV4_PATCH"
PARTIAL = "VLLM_ASCEND_DSV4_PARTIAL_HITS"
RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
ROWS = "VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE"
BEST = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
DSV4 = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 4,
    "compress_ratios": [0, 4, 128, 4, 0],  # the last one is the MTP layer's
    "max_position_embeddings": 131_072,
}
_PLAIN = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 256}
GEMMA = {
    **_PLAIN,
    "model_type": "gemma3",
    "sliding_window": 512,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
}
LLAMA = {**_PLAIN, "model_type": "llama", "max_position_embeddings": 8192}
MAMBA = {**GEMMA, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
CONNECTOR = {
    "kv_connector": "IdleConnector",
    "kv_connector_module_path": "vllm_ascend.doctor.idle_connector",
    "kv_role": "kv_both",
}
GRANULE_CONNECTOR = {**CONNECTOR, "kv_connector": "IdleGranuleConnector"}


@pytest.fixture
def layout(monkeypatch, tmp_path):
    """Return a function that lays a model out under an environment."""

    def build(config: dict[str, Any], environ: dict[str, str], **options) -> LayoutFacts:
        for variable in VARIABLES:
            monkeypatch.delenv(variable.name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "config.json").write_text(json.dumps(config))
        return layout_facts(LayoutRequest(str(tmp_path), **options))

    return build


@pytest.mark.parametrize(
    ("environ", "block_size", "drafts", "smallest"),
    [
        ({APPLY: "1"}, 128, 0, 16_384),
        ({APPLY: "1"}, 32, 0, 4096),
        ({APPLY: "1", **BEST}, 128, 0, 128),
        ({APPLY: "1", **BEST}, 128, 1, 256),
        ({APPLY: "1", **BEST}, 32, 1, 256),
    ],
)
def test_the_smallest_prefix_that_hits(layout, environ, block_size, drafts, smallest):
    facts = layout(DSV4, environ, block_size=block_size, num_speculative_tokens=drafts)
    assert (facts.smallest_prefix, facts.hits_from_request) == (smallest, 2)
    assert facts.block_size == block_size


def test_without_spare_tails_the_third_request_hits(layout):
    facts = layout(DSV4, {APPLY: "1", PARTIAL: "1", RETENTION: "0"}, block_size=128)
    assert (facts.smallest_prefix, facts.hits_from_request) == (128, 3)
    assert facts.retention_interval == 0


def test_groups_have_rows_tokens_and_bytes(layout):
    facts = layout(DSV4, {APPLY: "1"}, block_size=64)
    sizes = {group.kind: (group.num_layers, group.rows, group.tokens) for group in facts.groups}
    assert sizes == {
        "compressed 4:1": (2, 64, 256),
        "compressed 4:1, indexer": (2, 64, 256),
        "compressed 128:1": (1, 64, 8192),
        "sliding window 128": (4, 64, 64),
        "state, window 8": (2, 4, 4),
        "state, window 8, indexer": (2, 4, 4),
        "state, window 128": (1, 16, 16),
    }
    pages = {group.kind: group.page_bytes for group in facts.groups}
    assert pages["compressed 128:1"] == pages["state, window 128"] == 64 * 512 * 2
    assert facts.bytes_per_block >= sum(pages.values()) // 4
    assert facts.tokens_per_gib > 0


def test_a_hybrid_of_windows_is_laid_out_as_well(layout):
    facts = layout(GEMMA, BEST, block_size=32)
    assert facts.model == "gemma3"
    assert facts.coordinator == "AscendHybridKVCacheCoordinator"
    assert (facts.smallest_prefix, facts.hits_from_request) == (32, 2)
    assert facts.retention_interval == 32_768


def test_a_model_without_windows_keeps_vllms_coordinator(layout):
    facts = layout(LLAMA, BEST, block_size=16)
    assert facts.coordinator == "UnitaryKVCacheCoordinator"
    assert (facts.smallest_prefix, facts.hits_from_request) == (16, 2)
    assert not facts.warnings
    assert facts.max_model_len == 8192


@pytest.mark.parametrize(
    ("config", "environ", "options", "message"),
    [
        (DSV4, {APPLY: "1", ROWS: "64"}, {"block_size": 128}, f"{ROWS}=64 contradicts"),
        (DSV4, {APPLY: "1"}, {"block_size": 48}, "allowed are 32, 64, 128"),
        (DSV4, {APPLY: "1", RETENTION: "4096"}, {"block_size": 128}, "multiples of 16384"),
        (LLAMA, {RETENTION: "4096"}, {}, "window"),
    ],
)
def test_what_an_engine_would_refuse_is_a_conflict(layout, config, environ, options, message):
    with pytest.raises(ValueError, match=message):
        layout(config, environ, **options)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no num_hidden_layers"),
        ({**DSV4, "compress_ratios": [0, 8, 128, 4]}, "compress_ratios must name 0, 4 or 128"),
        (MAMBA, "linear_attention"),
    ],
)
def test_a_configuration_that_is_not_known_is_bad_input(layout, config, message):
    with pytest.raises(BadInputError, match=message):
        layout(config, {})


def test_with_a_connector_hits_end_with_whole_blocks(layout):
    environ = {APPLY: "1", **BEST}
    facts = layout(DSV4, environ, block_size=128, kv_transfer_config=CONNECTOR)
    assert facts.smallest_prefix == 16_384
    assert any(f"{PARTIAL} has no effect" in warning for warning in facts.warnings)


def test_with_a_connector_that_knows_granules_they_do_not(layout):
    environ = {APPLY: "1", **BEST}
    facts = layout(DSV4, environ, block_size=128, kv_transfer_config=GRANULE_CONNECTOR)
    assert facts.smallest_prefix == 128
    assert not any(PARTIAL in warning for warning in facts.warnings)


@WHERE_BLOCKS_COUNT_ROWS
@pytest.mark.parametrize(
    ("name", "is_warned"), [("IdleGranuleConnector", True), ("IdleGranuleTailConnector", False)]
)
def test_what_a_connector_costs_that_may_take_any_block_is_told(layout, name, is_warned):
    told = {**CONNECTOR, "kv_connector": name}
    facts = layout(DSV4, {APPLY: "1", **BEST}, block_size=128, kv_transfer_config=told)
    assert any("blocks of compressor state" in w for w in facts.warnings) is is_warned


def test_a_connector_that_is_not_there_is_a_conflict(layout):
    nobodys = {"kv_connector": "NobodysConnector", "kv_role": "kv_both"}
    with pytest.raises(ValueError, match="NobodysConnector"):
        layout(DSV4, {APPLY: "1"}, kv_transfer_config=nobodys)


@WHERE_BLOCKS_COUNT_ROWS
def test_a_connector_of_one_group_is_a_conflict_as_in_serving(layout):
    of_one_group = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    with pytest.raises(ValueError, match="ExampleConnector cannot be used with DeepSeek-V4"):
        layout(DSV4, {APPLY: "1"}, kv_transfer_config=of_one_group)


@WHERE_BLOCKS_COUNT_ROWS
def test_a_connector_that_may_take_rows_for_tokens_is_a_conflict_as_in_serving(layout):
    unknown = {"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}
    with pytest.raises(ValueError, match=r"MooncakeConnector cannot be used.* knows_rows = True"):
        layout(DSV4, {APPLY: "1"}, kv_transfer_config=unknown)


def found(facts: LayoutFacts, environ: dict[str, str], **options) -> list[tuple[Severity, str]]:
    asked = LayoutRequest("config.json", **options)
    findings = check_layout({"facts": asdict(facts)}, asked, environ, OURS)
    return [(finding.severity, finding.text) for finding in findings]


def test_a_context_shorter_than_the_smallest_hit_is_wrong(layout):
    facts = layout(DSV4, {APPLY: "1"}, block_size=128, max_model_len=8192)
    assert facts.smallest_prefix is None
    assert found(facts, {APPLY: "1"})[0][0] is Severity.WRONG


def test_the_layout_patch_belongs_to_one_model(layout):
    environ = {APPLY: "1", **BEST}
    gemma, dsv4 = layout(GEMMA, environ), layout(DSV4, environ)
    (warning,) = found(gemma, environ)
    assert warning[0] is Severity.WARNING and "meant for DeepSeek-V4" in warning[1]
    assert not found(dsv4, environ)
    (warning,) = found(dsv4, {})
    assert f"{APPLY} is not 1" in warning[1]


def test_a_connector_turns_the_hybrid_manager_off(layout):
    facts = layout(DSV4, {APPLY: "1", PARTIAL: "1"})
    *_, warning = found(facts, {APPLY: "1"}, kv_transfer_config=CONNECTOR)
    assert "hybrid KV cache manager" in warning[1]


def test_a_conflict_is_wrong():
    asked = LayoutRequest("config.json")
    (finding,) = check_layout({"conflict": "contradicts --block-size"}, asked, {}, OURS)
    assert finding.severity is Severity.WRONG
    assert "contradicts --block-size" in finding.text


def test_without_this_project_in_serving_the_layout_is_what_it_would_give(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DSV4))
    environ = child_environment({APPLY: "1", **BEST})
    asked = LayoutRequest(str(tmp_path), block_size=128)
    answer = ask_layout(asked, environ, None)
    facts = layout_of(answer)
    assert facts is not None and facts.smallest_prefix == 128
    (finding,) = check_layout(answer, asked, environ, None)
    assert finding.severity is Severity.WARNING
    assert "serving does not have it yet" in finding.text
