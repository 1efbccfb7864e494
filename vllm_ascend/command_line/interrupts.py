# SPDX-License-Identifier: Apache-2.0
"""Interrupts of commands that run long: the first ends what runs, others change nothing."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """Finish what takes seconds: an impatient Ctrl-C must not cost the results."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def termination_interrupts() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def interrupts_call(
    stop: Callable[[], object], signals: tuple[signal.Signals, ...] = (signal.SIGINT,)
) -> Iterator[None]:
    """Let the first of these signals end what runs; none breaks into the code.

    From then on they are ignored until the process ends: it has a report to write, and an exit
    code to leave behind, and Python takes a while to shut down. Without one, all is as before
    behind the block.

    Args:
        stop: Called once, between two bytecodes of the main thread.
        signals: Which ones.
    """

    def interrupt(*_: object) -> None:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        stop()

    previous = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is interrupt:
                signal.signal(number, handler)
