# SPDX-License-Identifier: Apache-2.0
"""Settings that contradict the model or the command line, found before an engine is started.

Schedulers and models check them anyway. But they run in processes of their own, behind minutes of
loading weights, and vLLM ends such a start with a message of its own about "initialization".
"""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.platforms import current_platform

from vllm_ascend.core.connectors.connector_rules import (
    CANNOT_BE_USED,
    allows_partial_hits,
    check_row_layout,
)
from vllm_ascend.core.layout.block_sizes import Granularity, dsv4_compressed_block_size
from vllm_ascend.core.layout.dsv4_specs import ascend_specs
from vllm_ascend.core.plan.vllm_terms import VllmTerms
from vllm_ascend.core.policy.boundaries import resolve_retention_interval
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.core.retention.interval_option import agreed_interval
from vllm_ascend.deployment import is_over_checkout

_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


def check_settings(vllm_config: VllmConfig, config: PrefixCacheConfig, terms: VllmTerms) -> None:
    """Check what can be known of DeepSeek-V4's caches without its model.

    Of other models the layout is not known yet: their schedulers check.

    Raises:
        ValueError: An option or the model runner cannot be used with this layout, the block sizes
            or the retention intervals contradict each other, or the interval is no multiple of the
            alignment that will be in force.
    """
    model_config, cache_config = vllm_config.model_config, vllm_config.cache_config
    option = agreed_interval(terms.retention_option(cache_config), config)
    if model_config is None or model_config.hf_text_config.model_type != "deepseek_v4":
        return
    is_over = config.changes_caching and is_over_checkout()
    ends_inside = config.partial_hits and allows_partial_hits(vllm_config.kv_transfer_config)
    counts_rows = _blocks_count_rows(config, terms)
    # Over a checkout it is vllm-ascend's own, which nobody has tried.
    runner_serves = terms.second_runner_serves and not is_over
    check_model_runner(
        is_v2=terms.uses_second_model_runner(vllm_config) and not runner_serves,
        counts_rows=counts_rows,
        copies_blocks=cache_config.enable_prefix_caching and ends_inside,
    )
    if not counts_rows and not is_over:
        return
    if model_config.enable_prompt_embeds:
        raise ValueError(
            f"--enable-prompt-embeds {CANNOT_BE_USED}, whose first layers choose their experts by "
            "token ids, which embeddings do not have: leave the option out"
        )
    _check_groups(vllm_config)
    rows = dsv4_compressed_block_size(config, cache_config)
    if cache_config.enable_prefix_caching:
        kinds = ascend_specs(rows)
        specs = [kinds.window, *kinds.mla.values(), *kinds.state.values()]
        alignment = Granularity.of(specs, ends_inside_blocks=ends_inside).alignment
        retention = config.retention if option is None else option
        resolve_retention_interval(retention, alignment, has_windowed_group=True)


def _blocks_count_rows(config: PrefixCacheConfig, terms: VllmTerms) -> bool:
    """Whether DeepSeek-V4's layout will be Ascend's, in rows.

    On Ascend vllm-ascend may have it without being asked, on the CPU this project does.
    """
    is_laid_out = config.apply_dsv4_patch or (config.changes_caching and is_over_checkout())
    return is_laid_out and terms.counts_rows and not current_platform.is_cuda_alike()


def _check_groups(vllm_config: VllmConfig) -> None:
    """Refuse what can only manage KV caches of one kind."""
    hybrid_is_off = vllm_config.scheduler_config.disable_hybrid_kv_cache_manager
    if vllm_config.kv_transfer_config is not None:
        offloads = vllm_config.cache_config.kv_offloading_size is not None
        option = "--kv-offloading-size" if offloads else "--kv-transfer-config"
        check_row_layout(vllm_config.kv_transfer_config, option, hybrid_is_off=bool(hybrid_is_off))
    elif hybrid_is_off:
        raise ValueError(
            f"--disable-hybrid-kv-cache-manager {CANNOT_BE_USED}, whose KV caches are of several "
            "kinds: leave the option out"
        )
    parallel = vllm_config.parallel_config
    sizes = {"--decode-context-parallel-size": parallel.decode_context_parallel_size}
    if vllm_config.cache_config.enable_prefix_caching:
        sizes["--prefill-context-parallel-size"] = parallel.prefill_context_parallel_size
    for option, size in sizes.items():
        if size > 1:
            raise ValueError(
                f"{option} {size} {CANNOT_BE_USED}, whose sliding windows and prefix cache do not "
                "spread over ranks: set it to 1"
            )


def check_model_runner(*, is_v2: bool, counts_rows: bool, copies_blocks: bool) -> None:
    """Refuse vLLM's second model runner where it would compute wrong rows without a word.

    Its own block tables take every token for a row, which is wrong where the layout counts rows,
    and it ignores the copies in a ``SchedulerOutput``, of blocks that hits end inside.

    Args:
        is_v2: It will serve, in a release where it makes no block copies.

    Raises:
        ValueError: It cannot be used.
    """
    if not is_v2:
        return
    if counts_rows:
        raise ValueError(
            f"{_RUNNER}=1 cannot be used with the KV cache layout of DeepSeek-V4 on Ascend "
            "(VLLM_ASCEND_APPLY_DSV4_PATCH=1), whose block tables it does not know: set it to 0"
        )
    if copies_blocks:
        raise ValueError(
            f"{_RUNNER}=1 cannot be used with hits that end inside blocks "
            "(VLLM_ASCEND_DSV4_PARTIAL_HITS=1, also set by the profile 'best'), because it does "
            f"not copy blocks: set {_RUNNER}=0 or VLLM_ASCEND_DSV4_PARTIAL_HITS=0"
        )
