# SPDX-License-Identifier: Apache-2.0
"""The table of the workers' side. Importing this module installs it, all or none.

Raises, on import:
    PatchError: See :mod:`vllm_ascend.patch.installer`; nothing was changed.
"""

from vllm_ascend.patch.installer import Plan, plan, require_supported_vllm
from vllm_ascend.patch.table import Patch
from vllm_ascend.releases.release import Side

PATCHES: tuple[Patch, ...] = require_supported_vllm().patches_of_layout(Side.WORKERS)


def install_all() -> Plan:
    """Install the worker patches, unless they are in force; return their plan."""
    return plan(PATCHES).install()


install_all()
