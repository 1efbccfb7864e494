# SPDX-License-Identifier: Apache-2.0
"""What is told at the start: the numbers in force, and settings that cannot help."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm.v1.kv_cache_interface import SlidingWindowSpec

from tests.e2e.core import layouts
from vllm_ascend.core.checks.startup_report import capacity_tokens, summary, warnings
from vllm_ascend.core.connectors.connector_rules import KNOWS_GRANULES, TAKES_TAILS_ALONE
from vllm_ascend.core.plan.cache_plan import CachePlan, plan_cache
from vllm_ascend.core.plan.scheduler_facts import SchedulerFacts
from vllm_ascend.core.policy.switches import PrefixCacheConfig as Config
from vllm_ascend.dry_run.layouts import dsv4_flash_a3

PARTIAL = Config(apply_dsv4_patch=True, partial_hits=True)
BEST = replace(PARTIAL, retention="auto", sparse_state=True, spare_tails=True, profile="best")


NUM_BLOCKS = 5106


def plan(layout, config: Config, **changes) -> CachePlan:
    """What is in force with these switches, as an engine decides it."""
    sizes = {"max_model_len": 135_000, "max_num_batched_tokens": 8192}
    sizes = {name: changes.pop(name, value) for name, value in sizes.items()}
    specs = changes.pop("specs", list(dict.fromkeys(layout.specs.values())))
    return plan_cache(specs, config, SchedulerFacts(**changes), **sizes)


def test_one_line_says_what_is_in_force():
    line = summary(plan(dsv4_flash_a3(128), BEST), NUM_BLOCKS)
    assert "\n" not in line
    for part in (
        "granule 128",
        "multiples of 128 tokens",
        "every 32,768 tokens",
        "scratch, spare tails, cached",
        "5,106 blocks",
        "2 x compressed 4:1 128 (512)",  # rows of the model and of the indexer
        "compressed 128:1 128 (16,384)",
        "window of 128 128 (128)",
        "state 32 (32)",
    ):
        assert part in line


def test_pinning_alone_keeps_all_other_tails_as_spares():
    line = summary(plan(layouts.gemma_like(16, 64), Config(pin_swa_tokens=True)), NUM_BLOCKS)
    assert "windows left by a whole chunk (pinned)" in line
    assert "scratch, spare tails, cached (least recently used first), pinned (oldest" in line


def test_capacity_counts_the_blocks_of_every_compressed_group():
    specs = [dsv4_flash_a3(128).specs[f"model.layers.{layer}.attn.mla"] for layer in (2, 3)]
    # 33 of them hold 16,384 tokens: 32 blocks of 512 tokens and one of 16,384.
    assert capacity_tokens(specs, 33) == 16_384
    assert capacity_tokens(specs, 33 * 155) == 155 * 16_384


@pytest.mark.parametrize(
    ("config", "changes", "part"),
    [
        (
            Config(apply_dsv4_patch=True),
            {},
            "prompts of up to 16,384 tokens are never hit",
        ),
        (Config(apply_dsv4_patch=True), {"max_model_len": 8192}, "nothing can be hit"),
        (PARTIAL, {"connector": frozenset()}, "PARTIAL_HITS has no effect: the KV connector"),
        (
            BEST,
            {"connector": frozenset({KNOWS_GRANULES})},
            "A request holds up to 2,313 blocks of compressor state instead of 27: 2,286 blocks "
            "that would hold about 576,212 tokens of prefixes",
        ),
        (replace(PARTIAL, spare_tails=True), {}, "VLLM_ASCEND_SPARE_TAILS has no effect"),
        (replace(PARTIAL, pin_min_drop_size=4), {}, "without VLLM_PIN_SWA_TOKENS=1"),
        (
            replace(PARTIAL, pin_swa_tokens=True),
            {"max_num_batched_tokens": 2047},
            "VLLM_PIN_MIN_DROP_SIZE=16: nothing will be pinned, a step of 2,047 tokens drops 15",
        ),
        (replace(PARTIAL, retention=4096), {"max_model_len": 4096}, "no more"),
    ],
)
def test_a_setting_that_cannot_help_is_named(config, changes, part):
    assert part in list(warnings(plan(dsv4_flash_a3(128), config, **changes)))[-1]


def test_nothing_is_said_of_state_beside_a_connector_that_takes_tails_alone():
    declared = frozenset({KNOWS_GRANULES, TAKES_TAILS_ALONE})
    assert not list(warnings(plan(dsv4_flash_a3(128), BEST, connector=declared)))


def test_returning_prompts_are_protected_where_some_layer_keeps_all_its_rows():
    layout, config = layouts.gemma_like(16, 64), Config(eviction="protect")
    told = plan(layout, config)
    assert "of returning prompts (up to half)" in summary(told, NUM_BLOCKS)
    assert not list(warnings(told))
    windows = [spec for spec in layout.specs.values() if isinstance(spec, SlidingWindowSpec)]
    (warning,) = warnings(plan(layout, config, specs=windows))
    assert "VLLM_ASCEND_EVICTION=protect has no effect" in warning


@pytest.mark.parametrize("variable", ["partial_hits", "sparse_state"])
def test_what_a_model_has_no_use_for_is_named(variable):
    layout = layouts.gemma_like(16, 64)
    config = Config(**{variable: True})
    (warning,) = warnings(plan(layout, config))
    assert f"DSV4_{variable.upper()} has no effect" in warning


def test_the_profile_brings_no_warnings():
    assert not list(warnings(plan(dsv4_flash_a3(128), BEST)))
    assert not list(warnings(plan(layouts.gemma_like(16, 64), BEST)))
