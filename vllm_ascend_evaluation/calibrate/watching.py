# SPDX-License-Identifier: Apache-2.0
"""Shows how far a calibration is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from vllm_ascend_evaluation.calibrate.measuring import Measured
from vllm_ascend_evaluation.calibrate.shots import Shot


@contextlib.contextmanager
def watched(seconds: float) -> Iterator[Callable[[Measured, Shot, float], None]]:
    """Give what is told of every shot: a bar on a terminal, a line per round elsewhere.

    Args:
        seconds: That the whole takes.
    """
    console = Console(stderr=True, emoji=False)
    said = -1
    with Progress(
        TextColumn("calibrating"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        disable=not console.is_interactive,
        transient=True,
    ) as progress:
        bar = progress.add_task("", total=seconds)

        def show(measured: Measured, shot: Shot, seconds_over: float) -> None:
            nonlocal said
            told = f"{len(measured.points)} measurements; now {shot}"
            progress.update(bar, completed=min(seconds_over, seconds), description=told)
            if not console.is_interactive and measured.num_rounds != said:
                said = measured.num_rounds
                what = f"round {said}" if said else "warming up"
                line = f"{what}: {seconds_over:.0f} of {seconds:.0f} s, {told}"
                console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield show
