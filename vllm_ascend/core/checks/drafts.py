# SPDX-License-Identifier: Apache-2.0
"""What a hit has to give up for drafts: nothing with DSpark.

A DSpark layer computes its row at position p from the target's hidden states at p alone, and reads
the window that the target's own sliding-window layers read. A hit that is exact for the target is
exact for these drafts, so the block that vLLM drops for EAGLE-like drafts stays. (Source: vLLM
0.30.0, ``models/deepseek_v4/nvidia/dspark.py``; vllm-ascend 0.30.0rc2, ``models/deepseek_v4``.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.config import SpeculativeConfig, VllmConfig

from vllm_ascend.core.plan.vllm_terms import VllmTerms
from vllm_ascend.core.policy.switches import PrefixCacheConfig

DSPARK = "dspark"


def check_method(
    speculative_config: Mapping[str, Any] | None, config: PrefixCacheConfig, terms: VllmTerms
) -> None:
    """Refuse a method of drafting that the running vLLM does not have.

    Args:
        speculative_config: As on the command line. vLLM's own error lists the methods that it has.

    Raises:
        ValueError: Names the method and the release that has it.
    """
    is_on = config.changes_caching or config.apply_dsv4_patch
    method = None if speculative_config is None else speculative_config.get("method")
    if is_on and method == DSPARK and not terms.has_dspark:
        raise ValueError(
            f'--speculative-config {{"method": "{DSPARK}"}} cannot be used with this vLLM, which '
            'has no DSpark: use vLLM 0.30.0, name "mtp", or leave the option out'
        )


def settle_drafts(vllm_config: VllmConfig, config: PrefixCacheConfig) -> None:
    """Change a configuration so that hits of DeepSeek-V4 keep what its drafts do not need dropped.

    Drafts of other models are left to vLLM.

    Args:
        vllm_config: No process has been started with it yet.
    """
    if _is_deepseek_v4(vllm_config):
        keep_last_block(vllm_config.speculative_config, config)


def _is_deepseek_v4(vllm_config: VllmConfig) -> bool:
    model_config = vllm_config.model_config
    return model_config is not None and model_config.hf_text_config.model_type == "deepseek_v4"


def prefill_without_drafts(vllm_config: VllmConfig, config: PrefixCacheConfig) -> str | None:
    """Return a warning if this only prefills for a DeepSeek-V4 with DSpark layers, without them.

    Its blocks then lack the rows that drafts of the decode side would read.
    """
    transfer, drafts = vllm_config.kv_transfer_config, vllm_config.speculative_config
    if transfer is None or not transfer.is_kv_producer or transfer.is_kv_consumer:
        return None
    if not (config.changes_caching and _is_deepseek_v4(vllm_config)):
        return None
    has_layers = hasattr(vllm_config.model_config.hf_text_config, "dspark_block_size")
    if not has_layers or (drafts is not None and drafts.method == DSPARK):
        return None
    return (
        "this checkpoint drafts with DSpark, and this prefill side does not: a decode side that "
        "drafts refuses its blocks. Give both sides the same --speculative-config"
    )


def keep_last_block(
    speculative_config: SpeculativeConfig | None, config: PrefixCacheConfig
) -> None:
    """Let hits keep the block that vLLM would drop, where drafts do not need it dropped.

    Args:
        speculative_config: Of DeepSeek-V4.
    """
    if speculative_config is None or speculative_config.method != DSPARK:
        return
    if config.changes_caching:
        speculative_config.disable_eagle_block_drop = True
