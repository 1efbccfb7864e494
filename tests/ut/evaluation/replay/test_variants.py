# SPDX-License-Identifier: Apache-2.0
"""What ``--variant`` accepts, and what it says otherwise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.variants import (
    BUILT_IN_NAMES,
    check_layout,
    default_variants,
    fit_block_size,
    parse_variant,
    parse_variants,
    with_evictions,
    with_variables,
)

APPLY = "VLLM_ASCEND_APPLY_DSV4_PATCH"
RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"


def test_built_in_on_the_ascend_layout():
    variant, remark = parse_variant("retention-0", "dsv4-flash-a3")
    assert remark is None
    assert variant.environment == {APPLY: "1", RETENTION: "0"}


def test_rules_of_eviction_are_variants_of_best_each_once():
    texts = with_evictions(["upstream-like", "best"], ["lru", "protect", "protect"])
    assert texts == [
        *("upstream-like", "best"),
        "best:VLLM_ASCEND_EVICTION=lru",
    ]
    for text in texts:
        parse_variant(text, "dsv4-flash-a3")
    with pytest.raises(BadInputError, match="--eviction fifo: allowed are lru, protect"):
        with_evictions([], ["fifo"])


def test_a_former_variable_is_refused_with_the_name_of_the_new_one():
    with pytest.raises(BadInputError, match="set VLLM_ASCEND_EVICTION=protect"):
        parse_variant("best:VLLM_ASCEND_PROTECT_RETURNING=1", "dsv4-flash-a3")


@pytest.mark.parametrize("name", BUILT_IN_NAMES)
def test_no_built_in_has_a_block_size_of_its_own(name):
    """Both sides of a comparison have the one that the operator asks for."""
    for layout in ("dsv4-flash-a3", "some/config.json"):
        assert parse_variant(name, layout)[0].block_size is None


def test_what_is_left_out_is_told():
    variants, remarks = parse_variants(["upstream-like", "best", "stock"], "dsv4-flash-a3")
    assert [variant.name for variant in variants] == ["upstream-like", "best"]
    stands_in, left_out = remarks
    assert "'upstream-like' stands in for it" in stands_in
    assert left_out == "--variant stock: upstream-like is there already and is run once"
    variants, remarks = parse_variants(["best", "best"], "dsv4-flash-gpu")
    assert [variant.name for variant in variants] == ["best"]
    assert remarks == ["--variant best: best is there already and is run once"]
    with pytest.raises(BadInputError, match="--variant x is given twice with different settings"):
        parse_variants(["x:block_size=32", "x:block_size=64"], "dsv4-flash-a3")


@given(st.lists(st.sampled_from([*BUILT_IN_NAMES, "best:block_size=32", "stock@dsv4-flash-gpu"])))
def test_every_variant_is_run_or_named(texts):
    variants, remarks = parse_variants(texts, "dsv4-flash-a3")
    assert len(variants) == len({variant.name for variant in variants})
    for text in texts:
        is_run = any(variant.name == text for variant in variants)
        assert is_run or any(f"--variant {text}" in remark for remark in remarks) or text == "stock"
    assert len(texts) - len(variants) == sum("is run once" in remark for remark in remarks)


def test_the_ascend_switch_is_left_off_elsewhere():
    variant, _ = parse_variant("retention-auto", "some/config.json")
    assert variant.environment == {RETENTION: "auto"}


def test_stock_says_what_stands_in_for_it():
    variant, remark = parse_variant("stock", "dsv4-flash-a3")
    assert variant.name == "upstream-like" and variant.patched and variant.block_size is None
    assert remark is not None and "cannot carry" in remark


def test_what_stands_in_for_stock_has_the_block_size_asked_for():
    variant, remark = parse_variant("stock:block_size=32", "dsv4-flash-a3")
    assert (variant.name, variant.block_size) == ("upstream-like:block_size=32", 32)
    assert "'upstream-like:block_size=32' stands in" in remark


def test_stock_is_unpatched_where_it_can_run():
    for text, layout in [("stock", "dsv4-flash-gpu"), ("stock@dsv4-flash-gpu", "dsv4-flash-a3")]:
        variant, remark = parse_variant(text, layout)
        assert remark is None and not variant.patched and variant.environment == {}


def test_custom():
    text = f"mine:{RETENTION}=4096,block_size=32"
    variant, _ = parse_variant(text, "dsv4-flash-a3")
    assert (variant.name, variant.block_size) == ("mine", 32)
    assert variant.environment == {APPLY: "1", RETENTION: "4096"}


def test_built_ins_for_partial_hits_and_for_everything():
    partial, _ = parse_variant("partial", "dsv4-flash-a3")
    assert partial.environment == {
        APPLY: "1",
        RETENTION: "auto",
        "VLLM_ASCEND_DSV4_PARTIAL_HITS": "1",
    }
    best, _ = parse_variant("best", "dsv4-flash-a3")
    assert best.environment == {APPLY: "1", "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}


def test_from_variables_alone():
    variant = with_variables("mine", {RETENTION: "0"}, "dsv4-flash-a3")
    assert (variant.name, variant.patched) == ("mine", True)
    assert variant.environment == {APPLY: "1", RETENTION: "0"}
    with pytest.raises(BadInputError, match=f"mine: {RETENTION}='often' is invalid"):
        with_variables("mine", {RETENTION: "often"}, "dsv4-flash-a3")


def test_settings_behind_a_built_in_name_come_on_top_and_show_in_the_name():
    variant, _ = parse_variant("retention-0:block_size=64", "dsv4-flash-a3")
    assert variant.name == "retention-0:block_size=64" and variant.block_size == 64
    assert variant.environment == {APPLY: "1", RETENTION: "0"}
    variant, _ = parse_variant(f"retention-0:{RETENTION}=auto", "some/config.json")
    assert variant.environment == {RETENTION: "auto"}


def test_stock_never_turns_into_something_patched():
    variant, _ = parse_variant("stock:block_size=32", "some/config.json")
    assert not variant.patched and variant.block_size == 32 and variant.environment == {}
    with pytest.raises(BadInputError, match="stock: runs without the patches"):
        parse_variant(f"stock:{RETENTION}=0", "some/config.json")


def test_the_default_comparison_has_a_stock_side_that_can_run():
    assert default_variants("dsv4-flash-a3") == ["upstream-like", "best"]
    assert default_variants("some/config.json") == ["stock", "best"]
    assert default_variants("dsv4-flash-a3-rings") == ["best"]


def test_layouts_that_cannot_be_there(tmp_path):
    for layout in ("dsv4-flash-a3", "dsv4-flash-gpu", str(tmp_path)):
        check_layout(layout)
    with pytest.raises(BadInputError, match=r"--layout nowhere: allowed are .*dsv4-flash-a3-rings"):
        check_layout("nowhere")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("best-of-all", "unknown; built in are stock"),
        ("mine:X", "expected NAME:VARIABLE=VALUE"),
        (":A=1", "expected NAME:VARIABLE=VALUE"),
        ("mine:HOME=1", "HOME is not a variable of this project"),
        (f"mine:{RETENTION}=often", f"{RETENTION}='often' is invalid"),
        ("mine:block_size=x", "expected a positive number"),
    ],
)
def test_bad_variants(text, complaint):
    with pytest.raises(BadInputError, match=complaint):
        parse_variant(text, "dsv4-flash-a3")


def test_block_sizes():
    assert fit_block_size("dsv4-flash-a3", 64) == 64
    assert fit_block_size("dsv4-flash-gpu", 64) == 256
    assert fit_block_size("config.json", 16) == 16
    with pytest.raises(BadInputError, match="--block-size 16: dsv4-flash-a3 has 32, 64 and 128"):
        fit_block_size("dsv4-flash-a3", 16)
    with pytest.raises(BadInputError, match="positive"):
        fit_block_size("config.json", 0)


@pytest.mark.parametrize("name", BUILT_IN_NAMES)
def test_every_variant_says_what_it_is(name):
    assert parse_variant(name, "dsv4-flash-gpu")[0].description
    elsewhere, _ = parse_variant(f"{name}@dsv4-flash-gpu", "dsv4-flash-a3")
    assert elsewhere.description.endswith("; on vLLM's own layout of DeepSeek-V4-Flash for GPUs")


def test_a_variant_of_the_users_own_is_described_by_its_variables():
    variant, _ = parse_variant(f"mine:{RETENTION}=4096", "some/config.json")
    assert variant.description == f"{RETENTION}=4096"
    with pytest.raises(BadInputError, match=r"^--variant mine: expected NAME:VARIABLE=VALUE"):
        parse_variant("mine:", "dsv4-flash-a3")
