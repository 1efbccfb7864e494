# SPDX-License-Identifier: Apache-2.0
"""Times of a replay whose steps have a fitted model, counted by hand."""

import json

import pytest

from tests.e2e.replay.in_process import invoke
from vllm_ascend_evaluation.replay.cost.model import CostModel
from vllm_ascend_evaluation.replay.cost.stored import StoredCostModel

MODEL = CostModel(10.0, 20.0, 500.0, 40.0, 20.0, 1000.0, 7.0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_times_of_one_prompt_are_those_of_its_steps(tmp_path, ranks):
    """1,000 tokens in chunks of 600, an answer of three, and nobody else."""
    path = tmp_path / "cost.json"
    path.write_text(StoredCostModel(MODEL, "dsv4-flash-a3").to_json())
    result = invoke(
        *("replay", "--workload", "1:1000:0:3", "--variant", "best", "--kv-gib", "4"),
        *("--cost-model", str(path), "--max-num-batched-tokens", "600", "--max-model-len", "4000"),
        *("--arrivals", "poisson:1", "--data-parallel", str(ranks), "--out", str(tmp_path)),
    )
    assert result.exit_code == 0, result.output
    (workload,) = json.loads((tmp_path / "report.json").read_text())["workloads"]
    (run,) = workload["runs"]
    context = 600 * 400  # the second chunk's 400 tokens behind the first one's
    attention_ms = (1000 * 1001 / 2 - context) * 40e-6 + context * 20e-6
    prefill_ms = 2 * 10.0 + 1000 * 0.020 + 2 * 0.5 + attention_ms
    decode_ms = [10.0 + 0.020 + 0.5 + rows * 1e-3 for rows in (1001, 1002)]
    assert run["modelled_ttft_ms"]["p50"] == pytest.approx(7.0 + prefill_ms)
    assert run["modelled_tpot_ms"]["p50"] == pytest.approx(sum(decode_ms) / 2)
