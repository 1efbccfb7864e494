# SPDX-License-Identifier: Apache-2.0
"""Which of two promises the relay publishes; needs no vLLM, so that options can name it."""

from __future__ import annotations

from enum import Enum


class Bound(str, Enum):
    """What the published chains say of the engine's hits."""

    UPPER = "upper"  # never too short: every prefix that some prompt hits, and what is in front
    LOWER = "lower"  # never too long: prefixes in which every boundary is hit
