# SPDX-License-Identifier: Apache-2.0
"""Engines with a tier below that tell others of it: what their tests have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.e2e.core.configurations import Configuration
from tests.e2e.tier.test_random_traffic import cell
from tests.e2e.tier.tier_engine import TierEngine, transfer_config
from vllm_ascend.dry_run.scheduler import SchedulerOptions

PLAIN, DRAFTS = cell("dsv4-rows", "plain", "best"), cell("dsv4-rows", "mtp3", "best")
HOST = {"backend": "host", "gib": 0.01}
MOONCAKE = {"backend": "mooncake", "mooncake": {"master_server_address": "memory:1"}}


def build(
    configuration: Configuration,
    room: float,
    seed: int,
    tier: Mapping[str, Any],
    **options: Any,
) -> TierEngine:
    """Return an engine.

    Args:
        configuration: Layout, mode and switches.
        room: See :meth:`Configuration.options`.
        seed: Of the oracle.
        tier: Its settings.
        options: Of :class:`SchedulerOptions`, beside the configuration's own.
    """
    chosen = SchedulerOptions(**vars(configuration.options(room)) | options)
    transfer = transfer_config(**tier)
    return TierEngine(configuration.layout, chosen, transfer, configuration.oracle(seed))
