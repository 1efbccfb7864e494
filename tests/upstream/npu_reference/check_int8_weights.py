# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU (see real_runs): W8A8 weights, as DeepSeek-V4 is deployed.

There is no other implementation to compare tokens with; operators have tests of their own. What is
rounded to int8 makes of the least difference a whole step, so scores are compared.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.upstream.npu_reference.check_whole_runs import BEST, scores_of_hits
from tests.upstream.npu_reference.checkpoint import publish_w8a8
from tests.upstream.npu_reference.engine import MODEL, Engine


@pytest.mark.parametrize(("rows", "num_drafts"), [(32, 0), (128, 0), (64, 2)])
def test_hits_change_nothing_but_rounding(tmp_path, rows, num_drafts):
    model = publish_w8a8(Path(os.environ[MODEL]), tmp_path / "w8a8")
    engine = Engine(
        rows=rows, switches=BEST, num_drafts=num_drafts, model=model, quantization="ascend"
    )
    # By name: releases have them in different modules.
    schemes = [
        type(getattr(getattr(module, "quant_method", None), "quant_method", None)).__name__
        for module in engine.runner.model.modules()
    ]
    num_layers = engine.runner.model_config.hf_config.num_hidden_layers
    assert schemes.count("AscendW8A8DynamicFusedMoEMethod") == num_layers
    # Four projections, and two of the shared experts, in every layer.
    assert schemes.count("AscendW8A8DynamicLinearMethod") >= 6 * num_layers

    # Steps that are cut elsewhere differ by less than 0.05 without any cache.
    scores_of_hits(engine, 0.15)
    assert engine.tagged.memory.num_read > 10_000
