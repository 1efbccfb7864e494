# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector walks the tokens of new prompts between steps, not within one."""

from __future__ import annotations

import gc

# Walking so many takes about 2 ms.
_MOST_NEW_TOKENS = 250_000
_YOUNG = 1  # what the collector has walked once or never


class NewPrompts:
    """Has new prompts walked before many have come.

    The collector walks each list until it is old, whatever allocation wakes it. A step that wakes
    it would take 40 ms where the prompts since the last time have millions of tokens.
    """

    def __init__(self) -> None:
        self._num_tokens = 0

    def added(self, num_tokens: int) -> None:
        """Note a request with so many tokens."""
        self._num_tokens += num_tokens
        if self._num_tokens >= _MOST_NEW_TOKENS and gc.isenabled():
            gc.collect(_YOUNG)
            self._num_tokens = 0
