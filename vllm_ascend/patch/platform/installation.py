# SPDX-License-Identifier: Apache-2.0
"""The table of the scheduler side. Importing this module plans and installs it as a whole.

Over a vllm-ascend checkout the package's ``__init__`` is vllm-ascend's; the first module of ours
that it imports comes here.

Raises:
    PatchError: The running vLLM, or the checkout, does not fit; nothing was changed.
    ValueError: An environment variable of ours has a value that is not allowed.
"""

# ruff: noqa: E402 - the version is judged before the patch modules are imported
from vllm.logger import init_logger

from vllm_ascend.patch.installer import Plan, plan, require_supported_vllm
from vllm_ascend.patch.known_variables import register_with_vllm
from vllm_ascend.prefix_cache_config import load_config, unset_blank_variables

_RELEASE = require_supported_vllm()

from vllm_ascend.core.plan.vllm_terms import use_terms
from vllm_ascend.deployment import is_over_checkout, own_package
from vllm_ascend.patch.engine import (
    patch_arg_utils,
    patch_block_pool,
    patch_core_client,
    patch_engine_core,
    patch_kv_cache_coordinator,
    patch_kv_cache_manager,
    patch_kv_cache_utils,
    patch_metrics,
    patch_scheduler,
    patch_single_type_kv_cache_manager,
)
from vllm_ascend.patch.table import Patch
from vllm_ascend.patch.upstream import installation as upstream
from vllm_ascend.patch.upstream import late
from vllm_ascend.releases.release import Side
from vllm_ascend.tier.registration import register_connector

# Under vLLM's own name, whose handlers print it.
_logger = init_logger("vllm.plugins.vllm_ascend_backport")

PATCHES: tuple[Patch, ...] = (
    *patch_kv_cache_utils.PATCHES,
    *patch_block_pool.PATCHES,
    *patch_single_type_kv_cache_manager.PATCHES,
    *patch_kv_cache_coordinator.PATCHES,
    *patch_kv_cache_manager.PATCHES,
    *patch_scheduler.PATCHES,
    *patch_engine_core.PATCHES,
    *patch_core_client.PATCHES,
    *patch_metrics.PATCHES,
    *patch_arg_utils.PATCHES,
    *_RELEASE.patches_of_layout(Side.ENGINE),
    *(_RELEASE.patches_of_layout(Side.ENGINE_OVER_CHECKOUT) if is_over_checkout() else ()),
)


def install_all() -> Plan:
    """Install the platform patches, unless they are in force; return their plan.

    Over a checkout, patches of vllm-ascend's own modules are checked with them, and set when
    those modules are imported.

    Raises:
        PatchError, ValueError: See the module.
    """
    unset_blank_variables()
    load_config()  # refuses what is not allowed
    if is_over_checkout():
        upstream.check(own_package())
    register_with_vllm()
    use_terms(_RELEASE)
    register_connector()
    installed = plan(PATCHES).install()
    if is_over_checkout():
        late.install_when_imported(upstream.PATCHES)
        # Not every release's own workers import a module of ours.
        late.import_behind("vllm_ascend.patch.worker", "vllm_ascend.patch.worker.installation")
    _logger.info_once("vllm-ascend-backport on %s", installed.summary())
    return installed


install_all()
