# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU (see real_runs): prompts that outgrow the state tables.

The overlay's rows of state tables hold the last blocks of a request only and move on with it.
"""

from __future__ import annotations

import pytest

from tests.upstream.npu_reference.check_whole_runs import BEST, answers_twice
from tests.upstream.npu_reference.engine import Engine
from tests.upstream.npu_reference.releases import differences_here


@pytest.mark.parametrize(("rows", "num_drafts"), [(32, 0), (128, 0), (64, 2)])
def test_long_prompts(rows, num_drafts):
    settings = {"max_model_len": 8192, "num_gpu_blocks_override": 6000}
    engine = Engine(rows=rows, switches=BEST, num_drafts=num_drafts, **settings)
    moved = noted_moves(engine) if differences_here().state_tables_move else None
    answers_twice(engine, hits=True)
    assert moved is None or len(set(moved)) > 2, "no row moved on twice"


def noted_moves(engine: Engine) -> list[int]:
    """Return a list that takes the tokens with which rows of the overlay's state tables begin."""
    window = engine.runner.input_batch.block_table.state_window
    moved: list[int] = []
    original = window.first_token_for

    def noted(row, end_token):
        first = original(row, end_token)
        moved.append(first)
        return first

    window.first_token_for = noted
    return moved
