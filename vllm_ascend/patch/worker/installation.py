# SPDX-License-Identifier: Apache-2.0
"""The table of the workers' side. Importing this module installs it, all or none.

Raises, on import:
    PatchError: See :mod:`vllm_ascend.patch.installer`; nothing was changed.
"""

from vllm_ascend.patch.installer import Plan, plan
from vllm_ascend.patch.table import Patch
from vllm_ascend.patch.worker import patch_gpu_model_runner, patch_worker_base

PATCHES: tuple[Patch, ...] = (*patch_gpu_model_runner.PATCHES, *patch_worker_base.PATCHES)


def install_all() -> Plan:
    """Install the worker patches, unless they are in force; return their plan."""
    return plan(PATCHES).install()


install_all()
