# SPDX-License-Identifier: Apache-2.0
"""Takes the place of vllm-ascend's module of this name.

In some releases it is the first module of ours that vllm-ascend imports: it installs the patches.
"""

import vllm_ascend.patch.platform.installation  # noqa: F401
from vllm_ascend.patch.table import Patch

PATCHES: tuple[Patch, ...] = ()
