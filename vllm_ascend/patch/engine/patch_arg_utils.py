# SPDX-License-Identifier: Apache-2.0
"""``vllm/engine/arg_utils.py``: settings that cannot work are refused before an engine starts."""

from __future__ import annotations

from collections.abc import Callable

from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.logger import init_logger

from vllm_ascend.core.checks.drafts import (
    check_method,
    prefill_without_drafts,
    settle_drafts,
)
from vllm_ascend.core.checks.early_check import check_settings
from vllm_ascend.patch.features import EARLY_CHECK
from vllm_ascend.patch.table import Patch, changes
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import running_release, why_no_engine

_logger = init_logger("vllm.plugins.vllm_ascend_backport")


@changes("vllm.engine.arg_utils:EngineArgs.create_engine_config", EARLY_CHECK)
def wrap_create_engine_config(self: EngineArgs, *args, original: Callable, **kwargs) -> VllmConfig:
    """Refuses a wrong block size or interval before an engine starts."""
    config, release = load_config(), running_release()
    is_on = config.changes_caching or config.apply_dsv4_patch
    if is_on and (why := why_no_engine(release)):
        raise ValueError(
            f"{why}, or unset VLLM_ASCEND_PREFIX_CACHE_PROFILE and the switches that it stands for"
        )
    check_method(self.speculative_config, config, release)
    vllm_config = original(self, *args, **kwargs)
    check_settings(vllm_config, config, release)
    settle_drafts(vllm_config, config)
    if warning := prefill_without_drafts(vllm_config, config):
        _logger.warning("prefix cache: %s", warning)
    return vllm_config


PATCHES: tuple[Patch, ...] = (wrap_create_engine_config,)
