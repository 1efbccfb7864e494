# SPDX-License-Identifier: Apache-2.0
"""Patches that DeepSeek-V4 on the CPU needs; importing this package installs them, all or none.

Raises, on import:
    PatchError: See :mod:`vllm_ascend.patch.installer`; nothing was changed.
"""

from vllm_ascend.patch.installer import Plan, plan
from vllm_ascend.patch.table import Patch
from vllm_ascend_evaluation.models.patches import (
    patch_cpu_model_runner,
    patch_cpu_platform,
    patch_cpu_triton_utils,
)

PATCHES: tuple[Patch, ...] = (
    *patch_cpu_platform.PATCHES,
    *patch_cpu_triton_utils.PATCHES,
    *patch_cpu_model_runner.PATCHES,
)


def install_all() -> Plan:
    """Install the patches for the CPU, unless they are in force; return their plan."""
    return plan(PATCHES).install()


install_all()
