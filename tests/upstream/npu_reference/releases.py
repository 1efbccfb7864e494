# SPDX-License-Identifier: Apache-2.0
"""What the harness must know of a release of vllm-ascend: all that differs between them."""

from __future__ import annotations

from typing import NamedTuple

from tests.upstream.sources import release_here


class Differences(NamedTuple):
    """What differs in a release.

    Attributes:
        window_cache: Module, and name there, of the layer that keeps windows of tokens.
        own_faults: File of faults that are planted in what not every release has.
        gives_drafts_no_blocks: Schedulers that give a request no blocks for drafts in its first
            step: drafts behind the first reach behind its blocks then.
        state_tables_move: Whether rows of state tables hold a request's last blocks only, and move
            on with it.
    """

    window_cache: tuple[str, str]
    own_faults: str
    gives_drafts_no_blocks: tuple[str, ...]
    state_tables_move: bool


_DIFFERENCES = {
    "0.20.2rc1": Differences(
        window_cache=("vllm_ascend.ops.dsa", "DeepseekV4SWACache"),
        own_faults="check_planted_faults_of_state_windows.py",
        gives_drafts_no_blocks=("Scheduler", "BalanceScheduler", "RecomputeScheduler"),
        state_tables_move=True,
    ),
    "0.23.0.post1": Differences(
        window_cache=("vllm_ascend.models.deepseek_v4", "AscendDeepseekV4SWACache"),
        own_faults="check_planted_faults_of_compressed_slots.py",
        gives_drafts_no_blocks=("BalanceScheduler", "RecomputeScheduler"),
        state_tables_move=False,
    ),
}
RELEASES = frozenset(_DIFFERENCES)


def differences_here() -> Differences:
    """Return what differs in vllm-ascend's release for the vLLM that is installed."""
    return _DIFFERENCES[release_here()]
