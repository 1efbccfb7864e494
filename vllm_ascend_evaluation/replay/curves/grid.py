# SPDX-License-Identifier: Apache-2.0
"""The table of a sweep: which settings it has, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.results import ReplayReport
from vllm_ascend_evaluation.replay.variants import (
    ASCEND_LAYOUT,
    PARTIAL,
    PROFILE,
    RETENTION,
    Variant,
    with_variables,
)

UNSET = "unset"
BEST = "best"


@dataclass(frozen=True)
class Row:
    """What all cells of a row have in common.

    Attributes:
        block_size: ``--block-size``.
        num_speculative_tokens: Draft tokens per step, 0 for no drafting.
        partial_hits: Whether hits may end inside a compressed block.
    """

    block_size: int
    num_speculative_tokens: int
    partial_hits: bool


@dataclass(frozen=True)
class Cell:
    """One setting: its row and its column.

    Attributes:
        column: A retention interval as its variable takes it, ``unset``, or ``best`` for the
            profile, which decides about partial hits itself.
    """

    row: Row
    column: str

    @property
    def name(self) -> str:
        """The name of the cell's variant: no other cell has it."""
        partial = " partial" if self.row.partial_hits and self.column != BEST else ""
        drafts = self.row.num_speculative_tokens
        return f"block {self.row.block_size} mtp {drafts}{partial} {self.column}"

    def variant(self) -> Variant:
        """Return what to run.

        Raises:
            BadInputError: The column is no interval.
        """
        if self.column == BEST:
            environment = {PROFILE: BEST}
        else:
            environment = {} if self.column == UNSET else {RETENTION: self.column}
            if self.row.partial_hits:
                environment[PARTIAL] = "1"
        return with_variables(self.name, environment, ASCEND_LAYOUT)


@dataclass(frozen=True)
class Grid:
    """Rows and columns; every pair is a cell, but ``best`` is one per block size and MTP."""

    rows: tuple[Row, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(
        cls,
        *,
        block_sizes: Sequence[int],
        mtp: Sequence[int],
        partial: Sequence[int],
        intervals: Sequence[str],
        best: bool,
    ) -> Grid:
        """Return the table of all combinations; what is given twice counts once.

        Args:
            block_sizes: ``--block-size`` each.
            mtp: Draft tokens per step each.
            partial: 0 and 1: partial hits off and on.
            intervals: Retention intervals, ``unset`` among them.
            best: Whether to add a column for the profile.

        Raises:
            BadInputError: A value of ``partial`` is neither 0 nor 1, or one of ``intervals`` is no
                interval.
        """
        for value in partial:
            if value not in (0, 1):
                raise BadInputError(f"--partial {value}: allowed are 0 and 1")
        for interval in intervals:
            if interval != UNSET:
                with_variables(f"--interval {interval}", {RETENTION: interval}, ASCEND_LAYOUT)
        axes = (dict.fromkeys(axis) for axis in (block_sizes, mtp, partial))
        rows = tuple(Row(size, drafts, bool(flag)) for size, drafts, flag in product(*axes))
        columns = [*dict.fromkeys(intervals), *([BEST] if best else [])]
        return cls(rows, tuple(columns))

    def has(self, cell: Cell) -> bool:
        """Whether the cell is run: the profile stands in the last row of its kind only."""
        row = cell.row
        kind = (row.block_size, row.num_speculative_tokens)
        alike = [r for r in self.rows if (r.block_size, r.num_speculative_tokens) == kind]
        return cell.column != BEST or row == alike[-1]

    def cells(self) -> list[Cell]:
        """Return all cells that are run, row by row."""
        cells = (Cell(row, column) for row, column in product(self.rows, self.columns))
        return [cell for cell in cells if self.has(cell)]


@dataclass(frozen=True)
class SweepReport:
    """What came of every cell.

    Attributes:
        replay: Every run; its variant is the name of its cell.
        grid: The cells.
        refusals: Name of a cell -> why the project refuses its setting.
    """

    replay: ReplayReport
    grid: Grid
    refusals: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: cells and runs, which share the name ``variant``."""
        data = self.replay.to_dict_of_many()
        data["cells"] = [
            {
                "variant": cell.name,
                **asdict(cell.row),
                "column": cell.column,
                "refusal": self.refusals.get(cell.name),
            }
            for cell in self.grid.cells()
        ]
        return data
