# SPDX-License-Identifier: Apache-2.0
"""What is decided before the first block is handed out, for DeepSeek-V4 on an A3."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.e2e.core import layouts
from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS
from vllm_ascend.core.connectors.connector_rules import KNOWS_GRANULES, TAKES_TAILS_ALONE
from vllm_ascend.core.plan.cache_plan import CachePlan, plan_cache
from vllm_ascend.core.plan.scheduler_facts import SchedulerFacts
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.prefix_cache_config import load_config

LAYOUT = PrefixCacheConfig(apply_dsv4_patch=True)
PARTIAL = replace(LAYOUT, partial_hits=True)


def plan(config: PrefixCacheConfig, rows: int = 128, **options) -> CachePlan:
    facts = SchedulerFacts(**options.pop("facts", {}))
    specs = list(dict.fromkeys(dsv4_flash_a3(rows).specs.values()))
    sizes = {"max_model_len": 135_000, "max_num_batched_tokens": 8192}
    return plan_cache(specs, config, facts, **{**sizes, **options})


@pytest.mark.parametrize(("rows", "alignment"), [(128, 16_384), (64, 8192), (32, 4096)])
def test_hits_are_whole_blocks_or_granules(rows, alignment):
    whole, partial = plan(LAYOUT, rows), plan(PARTIAL, rows)
    assert (whole.alignment, whole.whole_block_tokens, whole.granule) == (alignment, alignment, 128)
    assert (partial.alignment, partial.whole_block_tokens, partial.granule) == (128, alignment, 128)
    assert (whole.copies_blocks, partial.copies_blocks) == (False, True)
    assert (whole.is_stock, partial.is_stock) == (True, False)


def test_a_connector_that_knows_no_granules_keeps_hits_to_whole_blocks():
    assert plan(PARTIAL, facts={"connector": frozenset()}).alignment == 16_384
    knows = {"connector": frozenset({KNOWS_GRANULES})}
    assert plan(PARTIAL, facts=knows).alignment == 128


@pytest.mark.parametrize(
    ("facts", "is_sparse"),
    [
        ({}, True),
        ({"connector": frozenset({KNOWS_GRANULES})}, False),
        ({"connector": frozenset({TAKES_TAILS_ALONE})}, True),
    ],
)
@WHERE_BLOCKS_COUNT_ROWS
def test_state_is_sparse_unless_a_connector_may_take_any_block(facts, is_sparse):
    made = plan(replace(PARTIAL, sparse_state=True), facts=facts)
    assert any(map(made.is_sparse, made.specs)) is is_sparse


def test_the_schedulers_block_size_is_kept_to_unless_hits_end_inside_blocks():
    assert plan(LAYOUT, scheduler_block_size=3 * 16_384).alignment == 49_152
    assert plan(LAYOUT, facts={"block_size": 3 * 16_384}).alignment == 49_152
    assert plan(PARTIAL, scheduler_block_size=49_152).alignment == 128


def test_the_best_profile():
    best = plan(load_config({"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}))
    assert (best.alignment, best.interval, best.tails_interval) == (128, 32_768, 32_768)
    assert best.keeps_fallback and best.keeps_spares and not best.is_stock


def test_the_profile_asks_a_model_without_windows_for_nothing():
    specs = list(layouts.full_only().specs.values())
    config = load_config({"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"})
    sizes = {"max_model_len": 1000, "max_num_batched_tokens": 100}
    assert plan_cache(specs, config, SchedulerFacts(), **sizes).interval is None


def test_an_interval_given_by_hand_wins_and_is_reason_enough():
    by_hand = plan(LAYOUT, interval=16_384)
    assert (by_hand.interval, by_hand.is_stock, by_hand.keeps_fallback) == (16_384, False, False)


def test_pins_alone_make_all_other_tails_spare():
    pinned = plan(replace(PARTIAL, pin_swa_tokens=True))
    assert (pinned.interval, pinned.tails_interval, pinned.keeps_spares) == (None, 0, True)
    dense = plan(replace(PARTIAL, spare_tails=True))
    assert (dense.interval, dense.tails_interval, dense.keeps_spares) == (None, None, False)


def test_drafts_that_may_be_rejected():
    facts = {"num_draft_tokens": 2, "num_unconfirmed_tokens": 2}
    assert plan(PARTIAL, facts=facts).num_unconfirmed_tokens == 4
    assert plan(LAYOUT, facts=facts).num_unconfirmed_tokens == 2, "as stock vLLM, but corrected"


def test_without_a_cache_everything_is_stock():
    off = plan(PARTIAL, enable_caching=False)
    assert off.is_stock and off.alignment == 16_384 and not off.ends_inside_blocks


@pytest.mark.parametrize(
    ("config", "options", "error"),
    [
        (replace(PARTIAL, retention=100), {}, "multiples of 128"),
        (LAYOUT, {"interval": 4096}, "multiples of 16384"),
        (PARTIAL, {"hash_tokens": 96}, r"hash_block_size \(96\)"),
    ],
)
def test_what_does_not_fit_is_refused(config, options, error):
    with pytest.raises(ValueError, match=error):
        plan(config, **options)


def test_pins_need_a_window():
    specs = list(layouts.full_only().specs.values())
    config = PrefixCacheConfig(pin_swa_tokens=True)
    with pytest.raises(ValueError, match="VLLM_PIN_SWA_TOKENS"):
        plan_cache(specs, config, SchedulerFacts(), max_model_len=1000, max_num_batched_tokens=100)
