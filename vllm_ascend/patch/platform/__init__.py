# SPDX-License-Identifier: Apache-2.0
"""The patches of vLLM's scheduler side. Importing this package plans and installs them all.

Raises:
    PatchError: The running vLLM does not fit; nothing was changed.
"""

from vllm_ascend.patch.platform.installation import PATCHES, install_all

__all__ = ["PATCHES", "install_all"]
