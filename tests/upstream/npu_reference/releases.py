# SPDX-License-Identifier: Apache-2.0
"""What the harness must know of a release of vllm-ascend: all that differs between them."""

from __future__ import annotations

from typing import NamedTuple

from tests.upstream.sources import named_checkout, release_here


class Differences(NamedTuple):
    """What differs in a release.

    Attributes:
        window_cache: Module, and name there, of the layer that keeps windows of tokens.
        int8_config: The same of the configuration of int8 weights.
        rotations: Module and names of the products with the Hadamard matrix.
        own_checks: Files of checks over the overlaid checkout that not every release has.
        own_plain_checks: The same over the plain one.
        gives_drafts_no_blocks: Schedulers that give a request no blocks for drafts in its first
            step: drafts behind the first reach behind its blocks then.
        attends_at_once: Whether a layer's attention is called for all requests of a step at once,
            not for decoding ones and the others apart.
        copies_blocks: Whether vllm-ascend's runner makes block copies itself.
        state_tables_move: Whether rows of state tables hold a request's last blocks only, and move
            on with it.
        has_dspark: Whether it drafts with DSpark.
        needs_worker_process: Whether the worker has to be a process of its own, as on A3, with
            nothing switched on: vLLM changes the block size in its configuration, and the runner
            then looks for pages of that size.
    """

    window_cache: tuple[str, str]
    int8_config: tuple[str, str]
    rotations: tuple[str, ...]
    own_checks: tuple[str, ...]
    own_plain_checks: tuple[str, ...]
    gives_drafts_no_blocks: tuple[str, ...]
    state_tables_move: bool
    attends_at_once: bool = False
    copies_blocks: bool = False
    has_dspark: bool = False
    needs_worker_process: bool = False

    @property
    def builds_prefills(self) -> str:
        """Name of the method of a metadata builder that says where prefills start."""
        return "build_req_metadata" if self.attends_at_once else "build_prefill_metadata"


_ROTATIONS = ("vllm_ascend.attention.dsa_v1", "rotate_activation", "hadamard_linear")
_DIFFERENCES = {
    "0.20.2rc1": Differences(
        window_cache=("vllm_ascend.ops.dsa", "DeepseekV4SWACache"),
        int8_config=("vllm_ascend.quantization.modelslim_config", "AscendModelSlimConfig"),
        rotations=_ROTATIONS,
        own_checks=("check_planted_faults_of_state_windows.py",),
        own_plain_checks=("check_plain_faults_of_mooncake.py",),
        gives_drafts_no_blocks=("Scheduler", "BalanceScheduler", "RecomputeScheduler"),
        state_tables_move=True,
    ),
    "0.23.0.post1": Differences(
        window_cache=("vllm_ascend.models.deepseek_v4", "AscendDeepseekV4SWACache"),
        int8_config=("vllm_ascend.quantization.modelslim_config", "AscendModelSlimConfig"),
        rotations=_ROTATIONS,
        own_checks=("check_planted_faults_of_compressed_slots.py",),
        own_plain_checks=("check_plain_mooncake.py",),
        gives_drafts_no_blocks=("BalanceScheduler", "RecomputeScheduler"),
        state_tables_move=False,
    ),
    "0.30.0rc2": Differences(
        window_cache=("vllm_ascend.models.deepseek_v4.model", "AscendDeepseekV4SWACache"),
        int8_config=(
            "vllm_ascend.quantization.configs.modelslim_config",
            "AscendModelSlimConfig",
        ),
        rotations=(
            "vllm_ascend.models.deepseek_v4.indexer",
            "rotate_activation",
            "hadamard_linear",
        ),
        own_checks=("check_dspark.py",),
        own_plain_checks=(),
        gives_drafts_no_blocks=(),
        state_tables_move=False,
        attends_at_once=True,
        copies_blocks=True,
        has_dspark=True,
        needs_worker_process=True,
    ),
}
RELEASES = frozenset(_DIFFERENCES)
# Commits behind a release, by their first eight digits, whose plain code is not the release's in
# what is checked -> their own checks over the plain one.
_PLAIN_CHECKS_OF_COMMITS = {"792ea0c6": ("check_plain_mooncake.py",)}


def differences_here() -> Differences:
    """Return what differs in vllm-ascend's release for the vLLM that is installed."""
    return _DIFFERENCES[release_here()]


def own_plain_checks_here() -> tuple[str, ...]:
    """Return the files of checks over the plain checkout that not every one has."""
    # Checks import this module over a plain checkout, which has no overlay to import.
    from vllm_ascend.overlay.known_heads import head_of

    named = named_checkout()
    head = head_of(named / "vllm_ascend") if named else None
    commit = head.commit[:8] if head else ""
    return _PLAIN_CHECKS_OF_COMMITS.get(commit, differences_here().own_plain_checks)
