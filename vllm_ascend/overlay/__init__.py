# SPDX-License-Identifier: Apache-2.0
"""Puts this package over an editable checkout of vllm-ascend, and takes it away again.

Nothing here imports vLLM or torch: it runs on any machine that can see the checkout's files.
"""

from vllm_ascend.overlay.errors import OverlayError
from vllm_ascend.overlay.inspection import OverlayStatus, status
from vllm_ascend.overlay.plan import OverlayPlan, make_plan
from vllm_ascend.overlay.transaction import apply, revert

__all__ = [
    "OverlayError",
    "OverlayPlan",
    "OverlayStatus",
    "apply",
    "make_plan",
    "revert",
    "status",
]
