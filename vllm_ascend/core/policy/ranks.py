# SPDX-License-Identifier: Apache-2.0
"""How long a free block stays cached: its rank."""

from __future__ import annotations

from enum import IntEnum


class Rank(IntEnum):
    """The order in which free blocks are reused: blocks of a lower rank first."""

    SCRATCH = 0  # nothing is lost
    SPARE = 1  # a tail that nothing asked to keep, first in first out
    SPARE_4 = 2  # the same of every fourth boundary
    SPARE_16 = 3
    SPARE_64 = 4
    MARGINAL = 5  # adds little to a kept one, or another has its place, first in first out
    ROLLING = 6  # a prefix, or a tail at which a running request would be resumed now
    KEPT = 7  # a prefix that was hit, or a kept tail, least recently used first
    PROTECTED = 8  # the same of a prompt that came again, least recently used first
    PINNED = 9  # a window that was left in the middle of a prompt, oldest first


# Ranks of spare tails -> every how many boundaries have it or a higher one.
SPARE_SPACING = {Rank.SPARE: 1, Rank.SPARE_4: 4, Rank.SPARE_16: 16, Rank.SPARE_64: 64}
CONNECTOR_SPARE_SPACING = SPARE_SPACING[Rank.SPARE_4]
"""A connector that takes spare tails takes those of every so many boundaries."""
# What is counted. Spare are the ranks from SPARE to MARGINAL.
TIERS = (Rank.SCRATCH, Rank.SPARE, Rank.KEPT, Rank.PROTECTED, Rank.PINNED)
