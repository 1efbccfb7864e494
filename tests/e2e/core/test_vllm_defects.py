# SPDX-License-Identifier: Apache-2.0
"""Where vLLM 0.20.2 itself is not exact: the oracle finds these, so the workloads avoid them.

Real bugs are the best planted ones. Each was found by the oracle and confirmed upstream; a
release that fixes one makes its test fail, and the exclusion in configurations.py can go.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm.config import KVTransferConfig

from tests.e2e.core.configurations import CASES, MODES, Configuration
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.workload import Traffic, Workload
from tests.soak.driver import PatientEngine
from tests.soak.recipes import Layer, LayoutRecipe
from vllm_ascend.oracle import ContentViolation, OracleOptions
from vllm_ascend.replay.scheduler import SchedulerOptions


def run(make_engine: MakeEngine, case: str, mode: str, oracle: OracleOptions, **traffic) -> None:
    """Stock vLLM under the usual traffic, for a bounded number of steps."""
    cell = Configuration(
        next(c for c in CASES if c.name == case), next(m for m in MODES if m.name == mode), "unset"
    )
    for seed in range(4):
        engine = make_engine(lambda: cell.layout, lambda: cell.options(1.4), oracle)
        Workload(engine, replace(cell.traffic, **traffic), seed).run(500)


RELAXED = OracleOptions(strict_state=False, strict_draft=False)


def test_async_drafts_free_windows_too_early(make_engine: MakeEngine) -> None:
    """Windows are freed as if the drafts in flight had been accepted (vllm-project/vllm#47728)."""
    with pytest.raises(ContentViolation, match="sliding window"):
        run(make_engine, "gemma", "async-mtp", RELAXED)


def test_mamba_hits_reach_behind_full_attention_with_drafts(make_engine: MakeEngine) -> None:
    """Mamba's look-up keeps the block that EAGLE must drop (vllm-project/vllm#43559)."""
    with pytest.raises(ContentViolation, match="full"):
        run(make_engine, "mamba", "mtp1", RELAXED)


def test_a_forced_reset_loses_tokens_in_flight(make_engine: MakeEngine) -> None:
    """Asynchronous scheduling drops the next real token of a request preempted in a prefill.

    The worker has it, so from there on they disagree; some requests never end.
    """
    problems = "resumes with|goes on at|is to compute|nothing is scheduled any more"
    with pytest.raises(AssertionError, match=problems):
        run(make_engine, "full", "async", RELAXED, busy_reset=0.05)


def test_states_of_the_same_step_are_lent(make_engine: MakeEngine) -> None:
    """Right for vLLM's kernels, which save all states first; not for those of Ascend."""
    with pytest.raises(ContentViolation, match="compressor state"):
        run(make_engine, "dsv4-stock", "plain", replace(RELAXED, strict_state=True))


def test_draft_rows_at_block_ends_depend_on_who_wrote_them(make_engine: MakeEngine) -> None:
    """Of two blocks under one key, followed by different tokens, vLLM lends either."""
    with pytest.raises(ContentViolation, match="draft model"):
        run(make_engine, "full", "mtp3", replace(RELAXED, strict_draft=True))


def run_with_connector(layer: Layer, policy: str, failures: float) -> None:
    """Stock vLLM and one kind of layers, beside a connector that loads late."""
    transfer = KVTransferConfig(
        kv_connector="FakeConnector",
        kv_connector_module_path="tests.e2e.connectors.fake_connector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"seed": 0, "failures": failures, "unit": 4},
    )
    layout = LayoutRecipe("hybrid", 4, (layer,)).build()
    options = SchedulerOptions(
        num_blocks=20, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=80, policy=policy
    )
    traffic = Traffic(4, 48, 12, busy_reset=0.0, abort=0.0, abort_in_flight=0.0)
    for seed in range(4):
        Workload(PatientEngine(layout, options, transfer, RELAXED), traffic, seed).run(400)


def test_a_failed_load_resumes_where_its_window_has_gone(switch) -> None:
    """The request is cut back to its last valid block, and nothing in front of it was loaded."""
    with pytest.raises(ContentViolation, match="reads the null block"):
        run_with_connector(Layer("sliding", 4, window=4), "fcfs", failures=0.5)


def test_what_a_connector_loaded_starves_a_higher_priority(switch) -> None:
    """Requests that wait hold the blocks that the one in front of them waits for, for ever."""
    run_with_connector(Layer("full", 4), "fcfs", failures=0.0)
    with pytest.raises(AssertionError, match="nothing is scheduled any more"):
        run_with_connector(Layer("full", 4), "priority", failures=0.0)
