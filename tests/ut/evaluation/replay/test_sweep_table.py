# SPDX-License-Identifier: Apache-2.0
"""A sweep's tables from hand-made runs: numbers, signs in their place, widths."""

import io
from dataclasses import replace

from rich.console import Console

from tests.ut.evaluation.replay.curves.test_grid import make_grid
from tests.ut.evaluation.replay.test_report import make_report, make_run
from vllm_ascend_evaluation.replay.curves.grid import Cell, SweepReport
from vllm_ascend_evaluation.replay.report import print_sweep, write_sweep_markdown

REFUSED = "INTERVAL=4096 is invalid"


def make_sweep(**changes) -> SweepReport:
    """Block 32 ran to its end, of block 128 one cell is wrong, one partial, others are missing."""
    grid = make_grid(mtp=(1,), **changes)
    runs = []
    for number, cell in enumerate(grid.cells()):
        if cell.row.block_size == 32 and not is_refused(cell):
            runs.append(make_run(cell.name, hit_tokens=4 * number))
    wrong, partial = [c for c in grid.cells() if c.row.block_size == 128][:3:2]
    runs.append(make_run(wrong.name, violations=("row 3",), complete=False))
    runs.append(make_run(partial.name, complete=False))
    refusals = {cell.name: REFUSED for cell in grid.cells() if is_refused(cell)}
    return SweepReport(make_report(*runs, complete=False), grid, refusals)


def is_refused(cell: Cell) -> bool:
    return cell.column == "4096" and not cell.row.partial_hits


def terminal(report: SweepReport, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_sweep(report, console)
    return console.file.getvalue()


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip().startswith(("32 ", "128 "))]


def test_rows_on_a_terminal():
    text = terminal(make_sweep())
    assert rows(text) == [
        ["32", "1", "no", "0.00", "-", "="],
        ["32", "1", "yes", "0.20", "0.30", "0.40"],
        ["128", "1", "no", "WRONG", "-", "="],
        ["128", "1", "yes", "?", "?", "?"],
    ]
    words = " ".join(text.split())
    for expected in ("unset 4,096 best", f"- refused: {REFUSED}", "? did not run to its end"):
        assert expected in words
    assert "49.84 % (4,096)" in words and "WRONG rows were read" in words


def test_default_columns_fit_80_characters():
    grid = make_grid(block_sizes=(32, 64, 128), intervals=("unset", "0", "auto", "4096"))
    runs = [make_run(cell.name, hit_tokens=4000, violations=("x",)) for cell in grid.cells()]
    text = terminal(SweepReport(make_report(*runs), grid, {}))
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("WRONG") == len(runs) + 1


def test_markdown(tmp_path):
    write_sweep_markdown(make_sweep(), tmp_path / "sweep.md")
    lines = (tmp_path / "sweep.md").read_text().splitlines()
    assert "### W1: 4 prompts <of> a kind" in lines
    assert "| block size | MTP | partial hits | unset | `4096` | `best` |" in lines
    # The highest of a row is bold, nothing is in a row of zeros.
    assert "| 32 | 1 | yes | 0.20 | 0.30 | **0.40** |" in lines
    assert "| 32 | 1 | no | 0.00 | - | = |" in lines
    assert "| 128 | 1 | no | **WRONG** | - | = |" in lines
    assert f"`-` refused: {REFUSED}" in lines
    assert "Not everything ran to its end." in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_equal_rates_are_equally_bold(tmp_path):
    grid = make_grid(block_sizes=(32,), mtp=(0,), partial=(0,), best=False)
    report = make_report(*(make_run(cell.name) for cell in grid.cells()))
    write_sweep_markdown(SweepReport(report, grid, {}), tmp_path / "sweep.md")
    text = (tmp_path / "sweep.md").read_text()
    assert "| **30.85** | **30.85** |" in text
    assert "did not run" not in text and "Not everything" not in text


def test_a_sweep_of_nothing_is_still_a_table():
    report = replace(make_sweep(), refusals={})
    empty = replace(report.replay.workloads[0], runs=())
    text = terminal(replace(report, replay=replace(report.replay, workloads=(empty,))))
    assert rows(text)[0] == ["32", "1", "no", "?", "?", "="]
