# SPDX-License-Identifier: Apache-2.0
"""The patches of vllm-ascend's modules, for :mod:`vllm_ascend.patch.upstream.late` to set."""

from __future__ import annotations

from pathlib import Path

from vllm_ascend.patch.table import Patch, PatchError
from vllm_ascend.patch.upstream import (
    patch_block_table,
    patch_mooncake_hybrid_connector,
    patch_utils,
)
from vllm_ascend.patch.upstream.source import misfits
from vllm_ascend.releases import running_release
from vllm_ascend.releases.release import Side

# What is patched in some release, and what the running one takes of it.
TABLE: tuple[Patch, ...] = (
    *patch_utils.PATCHES,
    *patch_block_table.PATCHES,
    *patch_mooncake_hybrid_connector.PATCHES,
    *running_release().patches_of_layout(Side.CHECKOUT),
)
PATCHES: tuple[Patch, ...] = running_release().table(TABLE)


def check(package: Path) -> None:
    """Check the patches against a checkout's source files; nothing is imported or changed.

    Args:
        package: Its ``vllm_ascend`` directory.

    Raises:
        PatchError: One message with everything that does not fit.
    """
    problems = misfits(package, {patch.target: patch.upstream_sha256 for patch in PATCHES})
    if problems:
        raise PatchError(
            f"the patches do not fit the vllm-ascend in {package.parent}; nothing was changed: "
            f"{'; '.join(problems)}"
        )
