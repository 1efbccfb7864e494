# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU: faults in what tells a kernel where compressed rows go.

Of releases in which that kernel computes the slots itself, from the table and a request's start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.upstream.npu_reference.check_planted_faults import BEST
from tests.upstream.npu_reference.engine import Engine, answered
from tests.upstream.npu_reference.tags import TagError

FAULTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "blocks of another size": lambda told: {"block_size": told.block_size // 2},
    "a start off by a block": lambda told: {"start_pos": told.start_pos + 128},
    "rows of other requests": lambda told: {"block_table": told.block_table.roll(1, 0)},
    "a block too far": lambda told: {"block_table": told.block_table + 1},
    "a request too few": lambda told: {"num_reqs_actual": max(told.num_reqs_actual - 1, 1)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault, monkeypatch):
    from vllm_ascend.attention.dsa_v1 import AscendDSAImpl

    original = AscendDSAImpl._compute_compressor_metadata

    def wrong(self, metadata):
        return original(self, replace(metadata, **FAULTS[fault](metadata)))

    engine = Engine(rows=32, switches=BEST)
    monkeypatch.setattr(AscendDSAImpl, "_compute_compressor_metadata", wrong)
    with pytest.raises(TagError, match=r"foreign block|read"):
        engine.answer([prompt for prompt, _ in answered()])
