# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU: faults of the overlay's state tables, which move on.

Of releases whose state tables are the overlay's.
"""

from __future__ import annotations

import pytest

from tests.upstream.npu_reference.check_planted_faults import wrap
from tests.upstream.npu_reference.engine import Engine, answered
from tests.upstream.npu_reference.tags import TagError


@pytest.mark.parametrize("num_tokens", [-128, 128])
def test_rows_of_state_tables_that_begin_elsewhere_than_told(num_tokens):
    from vllm_ascend.worker.state_window import StateWindow

    wrap(StateWindow, "shift", lambda original, window, starts, first: starts.add_(num_tokens))
    engine = Engine(rows=32, max_model_len=8192)
    assert engine.runner.input_batch.block_table.state_window is not None
    with pytest.raises(TagError, match="positions"):
        engine.answer([prompt for prompt, _ in answered()])
