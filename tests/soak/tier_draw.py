# SPDX-License-Identifier: Apache-2.0
"""Random tiers below cases that can have one. Seeded."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest import mock

from vllm.v1.core.sched.scheduler import Scheduler

from tests.soak.case import Case, Tier
from tests.soak.engines import environment
from vllm_ascend.prefix_cache_config import is_left_to_vllm, load_config
from vllm_ascend.tier import layout
from vllm_ascend.tier.objects import HEADER_BYTES

_SHARE = 0.4
_MOST_STEPS = 250
_NOT_HELD = {"mamba", "chunked"}
_CANNOT = "GranuleTierConnector cannot hold"


def with_tier(case: Case, probe: Scheduler, rng: random.Random) -> Case:
    """The case with a tier, now and then.

    Args:
        probe: a scheduler of the case's layout.
    """
    can_have = case.options.enable_prefix_caching and case.connection is None
    if rng.random() >= _SHARE or not can_have or not case.layout.kinds.isdisjoint(_NOT_HELD):
        return case
    with environment(case.environment):
        can_have = not (is_left_to_vllm() or _has_short_units(case))
        object_bytes = _object_bytes(probe) if can_have else None
    if object_bytes is None:
        return case
    num_ranks = rng.choice((1, 1, 2))
    tier = Tier(
        seed=case.seed,
        backend=rng.choice(("host", "mooncake")),
        gib=num_ranks * object_bytes * rng.choice((5, 20, 100, 1000)) / (1 << 30),
        num_objects=rng.choice((1 << 30, 1 << 30, 60, 200)),
        num_ranks=num_ranks,
        staging_mib=object_bytes * rng.choice((1.01, 3, 50)) / (1 << 20),
        async_above_mib=rng.choice((0.0, 64.0)),
        late=rng.choice((0.0, 0.3, 0.7)),
        failures=rng.choice((0.0, 0.0, 0.05, 0.3)),
    )
    if tier.backend == "mooncake":
        tier = replace(tier, num_engines=rng.choice((1, 2, 2, 3)))
    else:
        tier = _with_disk(tier, random.Random(f"{case.seed} disk"))
    habits = replace(
        case.habits,
        tier_reset=rng.choice((0.0, 0.0, 0.01)),
        lost_memory=rng.choice((0.0, 0.02, 0.05)),
        other_engine=0.08 if tier.num_engines > 1 else 0.0,
        new_engine=0.02 if tier.disk_gib else rng.choice((0.0, 0.004)),
        num_steps=min(case.habits.num_steps, _MOST_STEPS),
    )
    return replace(case, tier=tier, habits=habits)


def _with_disk(tier: Tier, rng: random.Random) -> Tier:
    """The tier with a disk below, now and then; two engines may share it."""
    if rng.random() < 0.4:
        return tier
    disk_gib = tier.gib * rng.choice((0.5, 3, 100))
    return replace(tier, disk_gib=disk_gib, num_engines=rng.choice((1, 1, 2)))


def _has_short_units(case: Case) -> bool:
    """Whether units are shorter than a window of state where vLLM's own caching is in force.

    It enters all blocks of that window, and the tier loads those of the tail. No unit of an engine
    is that short, but these are.
    """
    return "compressed" in case.layout.kinds and not load_config().changes_caching


def _object_bytes(probe: Scheduler) -> int | None:
    """Bytes of the largest object, its header included; ``None``: no tier can hold the layout."""
    try:
        with mock.patch.object(layout, "LEAST_UNIT_TOKENS", 1):
            found = layout.describe(probe.kv_cache_config, probe.vllm_config, "soak")
    except ValueError as error:
        if str(error).startswith(_CANNOT):
            return None
        raise
    return HEADER_BYTES + max(found.unit_bytes, found.tail_bytes)
