# SPDX-License-Identifier: Apache-2.0
"""The clock of a replay, which steps move on."""

from __future__ import annotations

from collections.abc import Callable


class VirtualClock:
    """Time since the start of a replay.

    Attributes:
        now_ms: The time.
        num_awaited: What steps wait for that takes time of its own.
    """

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.num_awaited = 0
        self._told: list[Callable[[], None]] = []

    @property
    def now_s(self) -> float:
        """The time in seconds."""
        return self.now_ms / 1e3

    def tell(self, callback: Callable[[], None]) -> None:
        """Call somebody whenever time has passed."""
        self._told.append(callback)

    def move_to(self, now_ms: float) -> None:
        """Let time pass."""
        self.now_ms = now_ms
        for callback in self._told:
            callback()
