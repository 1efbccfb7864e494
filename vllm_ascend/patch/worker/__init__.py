# SPDX-License-Identifier: Apache-2.0
"""The patches of the workers' code. Importing this package installs them, all or none."""

from vllm_ascend.patch.worker.installation import PATCHES, install_all

__all__ = ["PATCHES", "install_all"]
