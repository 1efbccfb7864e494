# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py): what the doctor says of every patch there."""

from __future__ import annotations

import vllm_ascend.patch.platform
import vllm_ascend.patch.worker  # noqa: F401 - installs the patches
from vllm_ascend.doctor import serving_child
from vllm_ascend.releases import running_release


def test_nothing_is_wrong_and_nothing_is_promised_that_will_not_be_set():
    """vllm-ascend's own patches are imported behind ours, and wrap some of them."""
    rows = {row["target"]: row["state"] for row in serving_child._patches()}
    known = {"applied", "overridden", "ready", "left to vLLM", "not available"}
    assert set(rows.values()) <= known
    release = running_release()
    assert {rows[target] for target in rows.keys() & release.native.keys()} == {"left to vLLM"}
    # What a release lacks may belong to a layout that it lacks as well, and is not asked for then.
    assert {rows[target] for target in rows.keys() & release.absent.keys()} <= {"not available"}
