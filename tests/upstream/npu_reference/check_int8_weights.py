# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU (see real_runs): W8A8 weights, as DeepSeek-V4 is deployed.

There is no other implementation to compare tokens with; operators have tests of their own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.upstream.npu_reference.check_whole_runs import BEST
from tests.upstream.npu_reference.checkpoint import publish_w8a8
from tests.upstream.npu_reference.engine import MODEL, Engine, answered, tokens_of


@pytest.mark.parametrize(("rows", "num_drafts"), [(32, 0), (128, 0), (64, 2)])
def test_hits_change_no_token(tmp_path, rows, num_drafts):
    import vllm_ascend.quantization.methods.w8a8_dynamic as w8a8

    model = publish_w8a8(Path(os.environ[MODEL]), tmp_path / "w8a8")
    engine = Engine(
        rows=rows, switches=BEST, num_drafts=num_drafts, model=model, quantization="ascend"
    )
    schemes = [
        type(getattr(getattr(module, "quant_method", None), "quant_method", None))
        for module in engine.runner.model.modules()
    ]
    num_layers = engine.runner.model_config.hf_config.num_hidden_layers
    assert schemes.count(w8a8.AscendW8A8DynamicFusedMoEMethod) == num_layers
    # Four projections, and two of the shared experts, in every layer.
    assert schemes.count(w8a8.AscendW8A8DynamicLinearMethod) >= 6 * num_layers

    prompts = [prompt for prompt, _ in answered()]
    cold = []
    for prompt in prompts:
        assert engine.core.scheduler.reset_prefix_cache()
        cold += tokens_of(engine.answer([prompt]))
    for _ in range(2):
        outputs = engine.answer(prompts)
        assert tokens_of(outputs) == cold
    assert all(output.num_cached_tokens for output in outputs if len(output.prompt_token_ids) > 300)
    assert engine.tagged.memory.num_read > 10_000
