# SPDX-License-Identifier: Apache-2.0
"""A bound on computing time: an engine that runs in a circle must not stop the soak."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class TooLongError(Exception):
    """Something has not ended within its time."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Bound the computing time of what is done inside; only in a main thread, not nested.

    Of computing, not of the clock: that a machine is busy is no failure.

    Raises:
        TooLongError: the time is up.
    """

    def stop(*_: object) -> None:
        raise TooLongError(f"it has not ended after {seconds:.0f} s of computing")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
