# SPDX-License-Identifier: Apache-2.0
"""The patches of vLLM's scheduler side. Importing this package plans and installs them all."""

from vllm_ascend.patch.platform.installation import PATCHES, install_all

__all__ = ["PATCHES", "install_all"]
