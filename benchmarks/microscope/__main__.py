# SPDX-License-Identifier: Apache-2.0
"""Measures all sides, prints tables, and writes them down::

python -m benchmarks.microscope --docs docs/speed.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.microscope.cases import ALL_CASES, OPERATIONS
from benchmarks.microscope.figures import Figures, measure
from benchmarks.microscope.page import write_page
from benchmarks.microscope.plot import draw
from benchmarks.microscope.sides import SIDES
from benchmarks.microscope.tables import print_sheets
from vllm_ascend.command_line.ends import bad_input_ends
from vllm_ascend_evaluation.replay.outputs import partial_name, prepare_files

_LOG_WIDTH = 130


def _known(names: list[str] | None, all_names: dict, option: str) -> list[str]:
    for name in names or ():
        if name not in all_names:
            raise typer.BadParameter(
                f"{name!r} is unknown: allowed are {', '.join(all_names)}", param_hint=option
            )
    return list(names or all_names)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Measure everything so often.")] = 3,
    side: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(SIDES)}; all by default.")
    ] = None,
    operation: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(OPERATIONS)}; all by default.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Leave longer prompts out.")] = 1 << 20,
    out: Annotated[Path, typer.Option(help="Folder for speed.json and speed.png.")] = Path(
        "bench-out"
    ),
    docs: Annotated[
        Path | None, typer.Option(help="Write tables and picture into this page as well.")
    ] = None,
    reuse: Annotated[
        Path | None, typer.Option(help="Measure nothing: draw an earlier speed.json anew.")
    ] = None,
) -> None:
    """Measure what single calls cost the scheduler's thread: ours beside stock vLLM."""
    # Numbers are never torn apart: a log is as wide as the widest table.
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    sides = [SIDES[key] for key in _known(side, SIDES, "--side")]
    operations = _known(operation, OPERATIONS, "--operation")
    cases = [c for c in ALL_CASES if c.operation in operations and c.num_tokens <= max_tokens]
    if reuse is None:
        file = out / "speed.json"
        with bad_input_ends():
            prepare_files({"--out": file})
        with console.status("measuring") as status:
            # A finished one stays until this one is finished.
            for figures in measure(sides, cases, rounds, status.update):
                figures.write(partial_name(file))
        partial_name(file).replace(file)
    else:
        figures = Figures.read(reuse)
    print_sheets(figures, console)
    draw(figures, out / "speed.png")
    if docs is not None:
        write_page(figures, docs)


if __name__ == "__main__":
    typer.run(main)
