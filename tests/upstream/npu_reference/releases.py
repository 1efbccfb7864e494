# SPDX-License-Identifier: Apache-2.0
"""What the harness must know of a release of vllm-ascend: all that differs between them."""

from __future__ import annotations

from typing import NamedTuple

from tests.upstream.sources import release_here


class Differences(NamedTuple):
    """What differs in a release.

    Attributes:
        window_cache: Module, and name there, of the layer that keeps windows of tokens.
        own_checks: Files of checks over the overlaid checkout that not every release has.
        own_plain_checks: The same over the plain one.
        gives_drafts_no_blocks: Schedulers that give a request no blocks for drafts in its first
            step: drafts behind the first reach behind its blocks then.
        state_tables_move: Whether rows of state tables hold a request's last blocks only, and move
            on with it.
    """

    window_cache: tuple[str, str]
    own_checks: tuple[str, ...]
    own_plain_checks: tuple[str, ...]
    gives_drafts_no_blocks: tuple[str, ...]
    state_tables_move: bool


_DIFFERENCES = {
    "0.20.2rc1": Differences(
        window_cache=("vllm_ascend.ops.dsa", "DeepseekV4SWACache"),
        own_checks=(
            "check_planted_faults_of_state_windows.py",
            "check_whole_runs_of_ascend_store.py",
            "check_whole_runs_of_mooncake.py",
        ),
        own_plain_checks=("check_plain_faults_of_mooncake.py",),
        gives_drafts_no_blocks=("Scheduler", "BalanceScheduler", "RecomputeScheduler"),
        state_tables_move=True,
    ),
    "0.23.0.post1": Differences(
        window_cache=("vllm_ascend.models.deepseek_v4", "AscendDeepseekV4SWACache"),
        own_checks=("check_planted_faults_of_compressed_slots.py",),
        own_plain_checks=(),
        gives_drafts_no_blocks=("BalanceScheduler", "RecomputeScheduler"),
        state_tables_move=False,
    ),
}
RELEASES = frozenset(_DIFFERENCES)


def differences_here() -> Differences:
    """Return what differs in vllm-ascend's release for the vLLM that is installed."""
    return _DIFFERENCES[release_here()]
