# SPDX-License-Identifier: Apache-2.0
"""Where hits could not be exact, compressor state in rings is refused as the engine starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from vllm_ascend.core.plan.cache_plan import CachePlan, plan_cache
from vllm_ascend.core.plan.scheduler_facts import SchedulerFacts
from vllm_ascend.core.ring_tails.caching import check_rings
from vllm_ascend.dry_run.layouts import dsv4_flash_a3, in_rings
from vllm_ascend.prefix_cache_config import load_config

BEST = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}


def plan(environment: dict[str, str], **facts) -> CachePlan:
    specs = list(dict.fromkeys(in_rings(dsv4_flash_a3(128)).specs.values()))
    sizes = {"max_model_len": 135_000, "max_num_batched_tokens": 8192}
    return plan_cache(specs, load_config(environment), SchedulerFacts(**facts), **sizes)


def test_the_profile_has_rings_and_is_taken():
    assert plan(BEST).has_rings
    check_rings(plan(BEST))


def test_without_a_switch_nothing_would_take_snapshots():
    with pytest.raises(ValueError, match=r"rings.* set VLLM_ASCEND_PREFIX_CACHE_PROFILE=best"):
        check_rings(plan({}))


def test_a_connector_hands_over_no_snapshots():
    with pytest.raises(ValueError, match=r"beside a KV connector.* leave --kv-transfer-config out"):
        check_rings(plan(BEST, connector=frozenset()))


def test_a_window_that_reaches_over_two_boundaries_is_refused():
    wide = plan(BEST)
    specs = [
        replace(spec, sliding_window=256) if getattr(spec, "carries_ring", False) else spec
        for spec in wide.specs
    ]
    with pytest.raises(ValueError, match=r"at most 128 tokens.* one has 256"):
        check_rings(replace(wide, specs=tuple(specs)))
