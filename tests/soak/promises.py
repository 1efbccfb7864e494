# SPDX-License-Identifier: Apache-2.0
"""Where exactness is promised: under the project's switches, and where stock vLLM is right."""

from __future__ import annotations

from dataclasses import replace

from vllm.v1.core.sched.scheduler import Scheduler

from tests.soak.case import Case
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.layout.specs import group_specs, is_windowed


def is_ours(scheduler: Scheduler) -> bool:
    """Whether the project's coordinator is in force, which promises more than stock vLLM."""
    return isinstance(scheduler.kv_cache_manager.coordinator, AscendHybridKVCacheCoordinator)


def without_vllm_defects(case: Case, scheduler: Scheduler) -> Case:
    """The case without what stock vLLM 0.20.2 gets wrong; see test_vllm_defects.py.

    Args:
        scheduler: one that was built for the case.
    """
    if case.options.async_scheduling and case.options.num_speculative_tokens:
        # A turn ends while another step of it is in flight: vLLM counts its tokens twice, or stops.
        case = replace(case, habits=replace(case.habits, with_sessions=0.0))
    if is_ours(scheduler):
        return case
    # The hash of a token that a session drops stays, and sessions wait for each other's memory.
    case = replace(case, habits=replace(case.habits, with_sessions=0.0))
    if case.options.async_scheduling and case.options.num_speculative_tokens:
        # Windows are freed as if drafts in flight were accepted.
        case = replace(case, options=replace(case.options, async_scheduling=False))
    specs = group_specs(scheduler.kv_cache_config)
    if len(specs) > 1:
        # What one group allocates for external tokens may be what another has hit.
        case = replace(case, connection=None)
    if case.connection is not None:
        # vLLM goes on with such a request in the middle, which the oracle's worker does not.
        case = replace(case, connection=replace(case.connection, fails_in_step=False))
    has_windows = any(map(is_windowed, specs))
    if has_windows and case.connection is not None and case.connection.failures:
        # A request whose load failed resumes where its window has gone.
        case = replace(case, connection=replace(case.connection, failures=0.0))
    return case
