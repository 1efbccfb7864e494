# SPDX-License-Identifier: Apache-2.0
"""When to look at the pool: often enough for a plot, rarely enough to cost nothing."""

from __future__ import annotations

_SAMPLES_BY_REQUESTS = 150
_SAMPLES_BY_STEPS = 100


class SamplingPlan:
    """Picks steps evenly over requests and evenly over steps.

    How many steps a run will have is not known before its end. So every step is picked at first;
    whenever there are too many, the distance is doubled and half of them are dropped.
    """

    def __init__(self, num_requests: int) -> None:
        """Prepare for a run of ``num_requests`` requests."""
        self._requests_per_sample = max(num_requests // _SAMPLES_BY_REQUESTS, 1)
        self._steps_per_sample = 1
        self._last_mark = 0
        self._by_requests: set[int] = set()

    def is_due(self, step: int, num_requests: int) -> bool:
        """Return whether to take a sample; may make :meth:`keeps` say no to earlier ones.

        Args:
            step: Steps so far, one more at each call.
            num_requests: Requests scheduled so far.
        """
        mark = num_requests // self._requests_per_sample
        if mark != self._last_mark:
            self._last_mark = mark
            self._by_requests.add(step)
            return True
        if step // self._steps_per_sample > _SAMPLES_BY_STEPS:
            self._steps_per_sample *= 2
        return step % self._steps_per_sample == 0

    def keeps(self, step: int) -> bool:
        """Return whether the sample of an earlier step is still wanted."""
        return step in self._by_requests or step % self._steps_per_sample == 0
