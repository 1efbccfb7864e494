# SPDX-License-Identifier: Apache-2.0
"""Patches of the workers' code; importing this package installs them, all or none.

Raises, on import:
    PatchError: See :mod:`vllm_ascend.patch.installer`; nothing was changed.
"""

from vllm_ascend.patch.worker.installation import PATCHES, install_all

__all__ = ["PATCHES", "install_all"]
