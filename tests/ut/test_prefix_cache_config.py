# SPDX-License-Identifier: Apache-2.0
"""Every variable: its default, each kind of value, and the error for a wrong one."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import vllm_ascend
from vllm_ascend import prefix_cache_config
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.prefix_cache_config import (
    FORMER_VARIABLES,
    VARIABLES,
    child_environment,
    load_config,
    unset_blank_variables,
)


@pytest.fixture(autouse=True)
def vllm_without_the_interval(monkeypatch):
    """A vLLM that reads the retention interval itself has tests of its own."""
    monkeypatch.setattr(prefix_cache_config, "_vllm_reads_retention", lambda: False)
    prefix_cache_config._parse.cache_clear()
    yield
    prefix_cache_config._parse.cache_clear()


def test_nothing_set_is_stock():
    assert load_config({}) == PrefixCacheConfig()
    assert load_config({}).is_stock
    assert not load_config({}).changes_caching


def test_empty_counts_as_unset():
    assert load_config({variable.name: "" for variable in VARIABLES}).is_stock


def test_an_empty_value_is_unset_for_others_who_read_it(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.setenv(variable.name, "")
    monkeypatch.setenv("VLLM_ASCEND_SPARE_TAILS", "0")
    monkeypatch.setenv("VLLM_SOMEBODY_ELSES", "")
    unset_blank_variables()
    left = {variable.name for variable in VARIABLES} & os.environ.keys()
    assert left == {"VLLM_ASCEND_SPARE_TAILS"}
    assert os.environ["VLLM_SOMEBODY_ELSES"] == ""


@pytest.mark.parametrize(
    ("name", "raw", "field", "value"),
    [
        ("VLLM_ASCEND_APPLY_DSV4_PATCH", "1", "apply_dsv4_patch", True),
        ("VLLM_ASCEND_APPLY_DSV4_PATCH", "0", "apply_dsv4_patch", False),
        ("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "auto", "retention", "auto"),
        ("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "0", "retention", 0),
        ("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "4096", "retention", 4096),
        ("VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE", "32", "dsv4_compressed_kv_block_size", 32),
        ("VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE", "128", "dsv4_compressed_kv_block_size", 128),
        ("VLLM_ASCEND_DSV4_PARTIAL_HITS", "1", "partial_hits", True),
        ("VLLM_ASCEND_DSV4_SPARSE_STATE", "1", "sparse_state", True),
        ("VLLM_ASCEND_SPARE_TAILS", "1", "spare_tails", True),
        ("VLLM_ASCEND_EVICTION", "lru", "eviction", "lru"),
        ("VLLM_ASCEND_EVICTION", "protect", "eviction", "protect"),
        ("VLLM_ASCEND_PREFIX_CACHE_PROFILE", "best", "profile", "best"),
        ("VLLM_PIN_SWA_TOKENS", "1", "pin_swa_tokens", True),
        ("VLLM_PIN_MIN_DROP_SIZE", "4", "pin_min_drop_size", 4),
    ],
)
def test_values(name, raw, field, value):
    assert getattr(load_config({name: raw}), field) == value


@pytest.mark.parametrize(
    "environment",
    [
        {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "0"},
        {"VLLM_ASCEND_DSV4_PARTIAL_HITS": "1"},
        {"VLLM_ASCEND_DSV4_SPARSE_STATE": "1"},
        {"VLLM_ASCEND_SPARE_TAILS": "1"},
        {"VLLM_ASCEND_EVICTION": "protect"},
        {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"},
        {"VLLM_PIN_SWA_TOKENS": "1"},
    ],
    ids=lambda environment: next(iter(environment)),
)
def test_every_switch_of_the_cache_changes_caching(environment):
    assert load_config(environment).changes_caching


def test_the_best_profile_is_one_line_for_six_switches():
    profile = load_config({"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"})
    each = load_config(
        {
            "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "auto",
            "VLLM_ASCEND_DSV4_PARTIAL_HITS": "1",
            "VLLM_ASCEND_DSV4_SPARSE_STATE": "1",
            "VLLM_ASCEND_SPARE_TAILS": "1",
            "VLLM_ASCEND_EVICTION": "protect",
            "VLLM_ASCEND_ADMISSION": "cached",
        }
    )
    assert replace(profile, profile="stock", retention_from_profile=False) == each
    assert not profile.apply_dsv4_patch


@pytest.mark.parametrize("raw", ["0", "1"])
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("VLLM_ASCEND_PROTECT_RETURNING", "VLLM_ASCEND_EVICTION=protect"),
        ("VLLM_ASCEND_DSV4_PARTIAL_MIN_HIT_TOKENS", "unset it"),
    ],
)
def test_a_former_variable_ends_in_one_sentence_that_says_what_to_do(name, remedy, raw):
    with pytest.raises(ValueError) as error:
        load_config({name: raw})
    (sentence,) = str(error.value).splitlines()
    assert f"{name} is no longer read" in sentence
    assert remedy in sentence


def test_a_blank_former_variable_counts_as_unset():
    assert load_config(dict.fromkeys(FORMER_VARIABLES, "")).is_stock


def test_a_variable_wins_over_the_profile():
    config = load_config(
        {
            "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best",
            "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "4096",
            "VLLM_ASCEND_DSV4_SPARSE_STATE": "0",
        }
    )
    assert (config.retention, config.sparse_state) == (4096, False)
    assert config.partial_hits and config.spare_tails
    assert not config.retention_from_profile


@pytest.mark.parametrize(
    ("name", "raw", "allowed"),
    [
        ("VLLM_ASCEND_APPLY_DSV4_PATCH", "yes", "0 and 1"),
        ("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "-1", "'auto', 0"),
        ("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "4k", "'auto', 0"),
        ("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "²", "'auto', 0"),
        ("VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE", "16", "32, 64 and 128"),
        ("VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE", "064", "32, 64 and 128"),
        ("VLLM_ASCEND_DSV4_PARTIAL_HITS", "true", "0 and 1"),
        ("VLLM_ASCEND_EVICTION", "learned", "'lru' and 'protect'"),
        ("VLLM_ASCEND_PREFIX_CACHE_PROFILE", "fast", "'stock' and 'best'"),
        ("VLLM_PIN_SWA_TOKENS", "on", "0 and 1"),
        ("VLLM_PIN_MIN_DROP_SIZE", "-1", "whole numbers"),
    ],
)
def test_wrong_value_names_variable_value_and_rule(name, raw, allowed):
    with pytest.raises(ValueError, match=re.escape(f"{name}={raw!r}")) as error:
        load_config({name: raw})
    assert allowed in str(error.value)


def test_the_size_of_a_drop_alone_pins_nothing():
    assert not load_config({"VLLM_PIN_MIN_DROP_SIZE": "1"}).changes_caching


def test_child_environment_holds_only_the_overrides(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    monkeypatch.setenv("SOME_OTHER_VARIABLE", "kept")
    environment = child_environment({"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "0"})
    assert "VLLM_ASCEND_APPLY_DSV4_PATCH" not in environment
    assert environment["VLLM_PREFIX_CACHE_RETENTION_INTERVAL"] == "0"
    assert environment["SOME_OTHER_VARIABLE"] == "kept"
    assert environment["PYTHONHASHSEED"] == "0"


def test_the_environment_is_read_in_one_place():
    package = Path(vllm_ascend.__file__).parent
    readers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"os\.(environ|getenv)", path.read_text())
    }
    assert readers == {"prefix_cache_config.py"}
