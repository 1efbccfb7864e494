# SPDX-License-Identifier: Apache-2.0
"""The highest speed at which a promise is kept: doubled or halved first, then bisected."""

from __future__ import annotations

import math

SLOWEST = 2.0**-10
_FASTEST = 2.0**10
# Four bisections of a doubling.
_PRECISION = 2.0 ** (1 / 16)
_HAIR = 1.001  # roots are not exact


class SpeedSearch:
    """Asks for runs at one speed after the other, until the answer is known within 4.5 %.

    It takes for granted that a promise which is broken at one speed is broken at every higher one.
    Where the timestamps' own speed is too much, the slowest comes next: what is broken there,
    nobody can keep, and further runs would not change that.

    Attributes:
        kept: The highest speed at which the promise was kept; ``None``: at none so far.
    """

    def __init__(self) -> None:
        self.kept: float | None = None
        self._broken: float | None = None

    def next_speed(self) -> float | None:
        """Return the speed to try next; ``None``: nothing is left to find out."""
        kept, broken = self.kept, self._broken
        if broken is None:
            faster = 1.0 if kept is None else 2 * kept
            return faster if faster <= _FASTEST else None
        if kept is None:
            return SLOWEST if broken > SLOWEST else None
        if broken > 2 * _HAIR * kept:
            return broken / 2
        return math.sqrt(kept * broken) if broken > _HAIR * _PRECISION * kept else None

    def tell(self, speed: float, *, is_kept: bool) -> None:
        """Take note of what a run at this speed, the one asked for, has shown."""
        if is_kept:
            self.kept = speed
        else:
            self._broken = speed
