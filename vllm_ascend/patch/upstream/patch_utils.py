# SPDX-License-Identifier: Apache-2.0
"""``vllm_ascend/utils.py``: the configured block size instead of 128."""

from __future__ import annotations

from collections.abc import Callable

from vllm.config import VllmConfig

from vllm_ascend.core.layout.block_sizes import dsv4_compressed_block_size
from vllm_ascend.patch.features import CHECKOUT_BLOCK_SIZE
from vllm_ascend.patch.table import Patch, changes
from vllm_ascend.prefix_cache_config import load_config


@changes(
    "vllm_ascend.utils:refresh_block_size",
    CHECKOUT_BLOCK_SIZE,
    aliases=("vllm_ascend.platform:refresh_block_size",),
)
def wrap_refresh_block_size(vllm_config: VllmConfig, *, original: Callable) -> None:
    """It sets 128 for DeepSeek-V4 whatever --block-size says.

    Let the original decide, and undo its 128 for DeepSeek-V4 under our layout.

    Raises:
        ValueError: ``--block-size`` and our variable contradict each other, or a size is not
            allowed.
    """
    config, cache_config = load_config(), vllm_config.cache_config
    model, rows = getattr(vllm_config.model_config, "hf_config", None), None
    is_dsv4 = model is not None and model.model_type == "deepseek_v4"
    if config.apply_dsv4_patch and cache_config and is_dsv4:
        rows = dsv4_compressed_block_size(config, cache_config)
    original(vllm_config)
    if rows is not None:
        cache_config.block_size = rows


PATCHES: tuple[Patch, ...] = (wrap_refresh_block_size,)
