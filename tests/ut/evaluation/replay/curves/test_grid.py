# SPDX-License-Identifier: Apache-2.0
"""Which settings a sweep has, and the variables that make them."""

import pytest

from tests.ut.evaluation.replay.test_report import make_report, make_run
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.curves.grid import BEST, UNSET, Cell, Grid, Row, SweepReport

APPLY = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
PARTIAL = "VLLM_ASCEND_DSV4_PARTIAL_HITS"
PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE"


def make_grid(**changes) -> Grid:
    axes = {
        "block_sizes": (32, 128),
        "mtp": (0, 1),
        "partial": (0, 1),
        "intervals": (UNSET, "4096"),
        "best": True,
    }
    return Grid.of(**{**axes, **changes})


def test_every_combination_once_and_the_profile_once_per_block_size_and_drafts():
    grid = make_grid()
    cells = grid.cells()
    assert len(grid.rows) == 8 and grid.columns == (UNSET, "4096", BEST)
    assert len(cells) == len({cell.name for cell in cells}) == 8 * 2 + 4
    assert all(cell.row.partial_hits for cell in cells if cell.column == BEST)


def test_axes_of_one_value_and_values_given_twice():
    grid = make_grid(block_sizes=(64, 64), mtp=(2,), partial=(0,), intervals=("0", "0"))
    assert grid.rows == (Row(64, 2, False),)
    assert [cell.column for cell in grid.cells()] == ["0", BEST]
    assert make_grid(best=False).columns == (UNSET, "4096")


@pytest.mark.parametrize(
    ("partial", "column", "environment"),
    [
        (False, UNSET, {}),
        (True, UNSET, {PARTIAL: "1"}),
        (True, "auto", {PARTIAL: "1", RETENTION: "auto"}),
        (False, "4096", {RETENTION: "4096"}),
        (True, BEST, {PROFILE: "best"}),
    ],
)
def test_variables(partial, column, environment):
    variant = Cell(Row(32, 1, partial), column).variant()
    assert variant.patched and variant.environment == {**APPLY, **environment}


def test_values_that_cannot_be():
    with pytest.raises(BadInputError, match="--partial 2: allowed are 0 and 1"):
        make_grid(partial=(0, 2))
    with pytest.raises(BadInputError, match=f"{RETENTION}='often' is invalid"):
        Cell(Row(32, 0, False), "often").variant()


def test_json_joins_cells_and_runs():
    grid = make_grid(block_sizes=(32,), mtp=(0,), partial=(0,), best=False)
    ran, refused = grid.cells()
    report = SweepReport(make_report(make_run(ran.name)), grid, {refused.name: "too odd"})
    data = report.to_dict()
    (run,) = data["workloads"][0]["runs"]
    assert run["variant"] == data["cells"][0]["variant"] == ran.name
    assert run["hit_rate_percent"] == 30.85 and "samples" not in run
    assert data["cells"][0]["refusal"] is None
    assert data["cells"][1] == {
        "variant": refused.name,
        "block_size": 32,
        "num_speculative_tokens": 0,
        "partial_hits": False,
        "column": "4096",
        "refusal": "too odd",
    }
