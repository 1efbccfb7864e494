# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.soak``: random cases through the content oracle, until time runs out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.soak.pool import Budget, Soak, executor_of, replay_case
from tests.soak.summary import Summary
from vllm_ascend.command_line.ends import bad_input_ends
from vllm_ascend_evaluation.replay.outputs import partial_name, prepare_files

if TYPE_CHECKING:
    from tests.soak.case import Recording
    from tests.soak.episode import Result

_DEFAULT_MINUTES = 3.0
_INTERRUPTED = 130
_SECONDS_BETWEEN_LINES = 60  # where nothing shows a bar

app = typer.Typer(add_completion=False)


@app.command()
def main(
    seed: Annotated[int, typer.Option(help="Episode i of a seed is the same for ever.")] = 0,
    minutes: Annotated[
        float | None, typer.Option(help="Start no episode after this time.", min=0)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Start no episode after so many steps.", min=1)
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    out: Annotated[Path, typer.Option(help="Folder for cases and summary.json.")] = Path(
        "soak-out"
    ),
    episode: Annotated[
        int | None, typer.Option(help="Run this episode of the seed and no other.", min=0)
    ] = None,
    case: Annotated[Path | None, typer.Option(help="Replay this case and nothing else.")] = None,
) -> None:
    """Feed random cases to real schedulers; every step is verified by the content oracle.

    Exit codes: 0; 1 if anything failed or was left out; 130 if interrupted.
    """
    console = Console(emoji=False, highlight=False)
    if case is not None:
        with executor_of(1) as executor:
            recording = executor.submit(replay_case, case).result()
        show_recording(console, recording, case)
        raise typer.Exit(1 if recording.failure else 0)
    if minutes is None and steps is None:
        minutes = _DEFAULT_MINUTES
    with bad_input_ends():
        prepare_files({"--out": out / "summary.json"})
    console.print(f"soak: seed {seed}, {jobs} processes, results in {out}", markup=False)
    episodes = count() if episode is None else [episode]
    budget = Budget(None if minutes is None else 60 * minutes, steps)

    def show_failure(result: Result) -> None:
        console.print(f"episode {result.episode} of seed {seed} failed", style="red")
        if result.recording is None and result.failure is not None:
            console.print(result.failure.text, markup=False, soft_wrap=True)
        elif result.recording is not None:
            path = out / f"case-{result.recording.name}.json"
            show_recording(console, result.recording, path)

    with progress_on(console) as show_progress:
        summary = Soak(seed, out, on_progress=show_progress, on_failure=show_failure).run(
            episodes, budget, jobs
        )
    summary.print(console)
    file = out / "summary.json"
    summary.write(partial_name(file) if summary.interrupted else file)
    if summary.interrupted:
        raise typer.Exit(_INTERRUPTED)
    raise typer.Exit(0 if summary.is_good else 1)


@contextmanager
def progress_on(console: Console) -> Iterator[Callable[[Summary], None]]:
    """Give what shows how far a soak is: a bar on a terminal, a line now and then elsewhere."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting")
        told = time.monotonic()

        def show(summary: Summary) -> None:
            nonlocal told
            text = f"{summary.steps:,} steps, {summary.episodes:,} episodes"
            text += f", {len(summary.failures)} failures"
            progress.update(task, description=text)
            if not console.is_terminal and time.monotonic() - told >= _SECONDS_BETWEEN_LINES:
                told = time.monotonic()
                console.print(text, markup=False)

        yield show


def show_recording(console: Console, recording: Recording, path: Path) -> None:
    """Print a case for people."""
    from tests.soak.text import describe_recording  # imports vLLM, which the others wait for

    console.print(describe_recording(recording, path), markup=False, soft_wrap=True)


if __name__ == "__main__":
    app()
