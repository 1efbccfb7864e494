# SPDX-License-Identifier: Apache-2.0
"""When a front end may ask a rank for all that it has cached."""

from __future__ import annotations

import time
from dataclasses import dataclass

FIRST_PAUSE_SECONDS = 1.0
"""A rank is not asked again within this time."""
LONGEST_PAUSE_SECONDS = 60.0
"""The pause doubles with every question that brings nothing, up to this."""


@dataclass(eq=False)
class Asking:
    """The questions to one rank.

    A call that fails tells nothing of the next one, so it is made again. A rank that answers that
    it does not tell is not asked again, until it tells something all the same.

    Attributes:
        is_refused: The rank has answered that it does not tell.
        has_warned: That it does not tell, or cannot, has been logged.
    """

    is_refused: bool = False
    has_warned: bool = False
    _next_at: float = float("-inf")
    _pause: float = FIRST_PAUSE_SECONDS

    def may_ask(self) -> bool:
        """Whether the rank may be asked now; if so, it counts as asked."""
        now = time.monotonic()
        if self.is_refused or now < self._next_at:
            return False
        self._next_at = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return True

    def heard(self, *, is_followed: bool) -> None:
        """The rank has told something; ``is_followed``: its cache is known now."""
        self.is_refused = False
        if is_followed:
            self.has_warned = False
            self._pause = FIRST_PAUSE_SECONDS
