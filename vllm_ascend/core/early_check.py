# SPDX-License-Identifier: Apache-2.0
"""Settings that contradict the model or the command line, found before an engine is started.

Schedulers and models check them anyway. But they run in processes of their own, behind minutes of
loading weights, and vLLM ends such a start with a message of its own about "initialization".
"""

from __future__ import annotations

from vllm import envs
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from vllm_ascend.core.block_sizes import Granularity, dsv4_compressed_block_size
from vllm_ascend.core.connector_rules import allows_partial_hits
from vllm_ascend.core.dsv4_specs import ascend_specs
from vllm_ascend.core.retention import resolve_retention_interval
from vllm_ascend.prefix_cache_config import PrefixCacheConfig

_MODEL_TYPE = "deepseek_v4"


def check_settings(vllm_config: VllmConfig, config: PrefixCacheConfig) -> None:
    """Check what can be known of DeepSeek-V4's caches without its model.

    Of other models the layout is not known yet: their schedulers check.

    Raises:
        ValueError: The block sizes contradict each other, the retention interval is no multiple
            of the alignment that will be in force, or the model runner cannot do what is asked.
    """
    _check_model_runner(vllm_config, config)
    if not (config.apply_dsv4_patch and _is_laid_out_in_rows(vllm_config)):
        return
    rows = dsv4_compressed_block_size(config, vllm_config.cache_config)
    if not vllm_config.cache_config.enable_prefix_caching:
        return
    kinds = ascend_specs(rows)
    specs = [kinds.window, *kinds.mla.values(), *kinds.state.values()]
    ends_inside = config.partial_hits and allows_partial_hits(vllm_config.kv_transfer_config)
    alignment = Granularity.of(specs, ends_inside_blocks=ends_inside).alignment
    resolve_retention_interval(config.retention, alignment, has_windowed_group=True)


def _check_model_runner(vllm_config: VllmConfig, config: PrefixCacheConfig) -> None:
    """Refuse vLLM's second model runner where it would compute from the wrong rows."""
    model_config = vllm_config.model_config
    is_second = envs.VLLM_USE_V2_MODEL_RUNNER
    if not is_second or model_config is None or _model_type(vllm_config) != _MODEL_TYPE:
        return
    if config.apply_dsv4_patch and _is_laid_out_in_rows(vllm_config):
        raise ValueError(
            "VLLM_USE_V2_MODEL_RUNNER=1 cannot be used with VLLM_ASCEND_APPLY_DSV4_PATCH=1: that "
            "model runner's block tables take every token for a row. Unset "
            "VLLM_USE_V2_MODEL_RUNNER"
        )
    is_cached = vllm_config.cache_config.enable_prefix_caching
    if is_cached and config.partial_hits and allows_partial_hits(vllm_config.kv_transfer_config):
        raise ValueError(
            "VLLM_USE_V2_MODEL_RUNNER=1 cannot be used with hits inside blocks: that model runner "
            "makes no block copies. Unset VLLM_USE_V2_MODEL_RUNNER, or set "
            "VLLM_ASCEND_DSV4_PARTIAL_HITS=0"
        )


def _model_type(vllm_config: VllmConfig) -> str:
    return vllm_config.model_config.hf_text_config.model_type


def _is_laid_out_in_rows(vllm_config: VllmConfig) -> bool:
    """Whether the model will be DeepSeek-V4 as Ascend, or this project on the CPU, lays it out."""
    model_config = vllm_config.model_config
    if model_config is None or current_platform.is_cuda_alike():
        return False
    return _model_type(vllm_config) == _MODEL_TYPE
