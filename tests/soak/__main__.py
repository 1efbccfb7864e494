# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.soak``: random cases through the content oracle, until time runs out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.soak.pool import Budget, soak
from tests.soak.summary import Summary

_INTERRUPTED = 130


def main(
    seed: Annotated[int, typer.Option(help="Episode i of a seed is the same for ever.")] = 0,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time.", min=0)] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after so many steps.", min=1)] = None,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    out: Annotated[Path, typer.Option(help="Folder for cases and summary.json.")] = Path(
        "soak-out"
    ),
) -> None:
    """Feed random cases to real schedulers; every step is verified by the content oracle."""
    if minutes is None and steps is None:
        minutes = 3.0
    out.mkdir(parents=True, exist_ok=True)
    budget = Budget(None if minutes is None else 60 * minutes, steps)
    console = Console(emoji=False)
    console.print(f"soak: seed {seed}, {jobs} processes")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting")

        def show(summary: Summary) -> None:
            text = f"{summary.steps:,} steps, {summary.episodes:,} episodes"
            progress.update(task, description=f"{text}, {len(summary.failures)} failures")

        summary = soak(seed, budget, jobs, out, show)
    for episode, failure in summary.failures.items():
        console.print(f"episode {episode} of seed {seed} failed:\n{failure}", markup=False)
    summary.print(console)
    summary.write(out / "summary.json")
    if summary.interrupted:
        raise typer.Exit(_INTERRUPTED)
    raise typer.Exit(0 if summary.is_good else 1)


if __name__ == "__main__":
    typer.run(main)
