# SPDX-License-Identifier: Apache-2.0
"""Where vLLM 0.20.2 itself is not exact: the oracle finds these, so the workloads avoid them.

Real bugs are the best planted ones. Each was found by the oracle and confirmed upstream; a
release that fixes one makes its test fail, and the exclusion in configurations.py can go.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import soak
from tests.e2e.connectors.fake_connector import transfer_config
from tests.e2e.core import layouts
from tests.e2e.core.configurations import CASES, MODES, Configuration, grid
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.workload import Traffic, Workload
from tests.release_marks import ON_THE_FIRST_RELEASE, WHERE_BLOCKS_COUNT_ROWS
from tests.soak.case import Recording
from tests.soak.driver import Driver
from tests.soak.engines import PatientEngine
from tests.soak.recipes import Layer, LayoutRecipe
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend_evaluation.oracle import ContentViolation, IntegrityError, OracleOptions

# Later releases are other ones; what the workloads of theirs avoid is in configurations.py.
pytestmark = WHERE_BLOCKS_COUNT_ROWS


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


@ON_THE_FIRST_RELEASE
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


def test_new_blocks_of_full_attention_are_noted_for_ever(make_engine: MakeEngine) -> None:
    """They are to be zeroed, and only models with Mamba layers do (vllm-project/vllm#44490)."""
    cell = next(cell for cell in grid() if str(cell) == "gemma-plain-retention-unset")
    engine = make_engine(lambda: cell.layout, lambda: cell.options(1.3))
    noted = []
    for seed in range(2):
        Workload(engine, cell.traffic, seed).run(200)
        noted.append(
            sum(len(m.new_block_ids) for m in engine.manager.coordinator.single_type_managers)
        )
    assert noted[1] > 1.5 * noted[0] > 0


def test_a_failed_load_resumes_where_its_window_has_gone(switch) -> None:
    """The request is cut back to its last valid block, and nothing in front of it was loaded."""
    transfer = transfer_config(seed=0, failures=0.5, unit=4, fails_in_step=False)
    layout = LayoutRecipe("hybrid", 4, (Layer("sliding", 4, window=4),)).build()
    options = SchedulerOptions(num_blocks=200, max_num_batched_tokens=32, max_model_len=80)
    engine = PatientEngine(layout, options, transfer, RELAXED)
    with pytest.raises(ContentViolation, match="reads the null block"):
        Workload(engine, Traffic(4, 48, 12, busy_reset=0.0), 0).run(400)


def test_a_failed_load_ends_an_engine_of_several_groups(make_engine: MakeEngine) -> None:
    """It unpacks the tables as if there were one; with nothing set that is left to vLLM."""
    options = SchedulerOptions(num_blocks=80, max_num_batched_tokens=32, max_model_len=64)
    engine = make_engine(lambda: layouts.gemma_like(4, 9), options)
    engine.add("first", list(range(16)), 4)
    engine.step()
    with pytest.raises(ValueError, match="too many values to unpack"):
        engine.scheduler._handle_invalid_blocks({1}, {})


def test_external_tokens_take_what_another_group_has_hit(make_engine: MakeEngine) -> None:
    """A group allocates blocks for them before the next one has referenced its part of the hit."""
    options = SchedulerOptions(num_blocks=80, max_num_batched_tokens=32, max_model_len=64)
    engine = make_engine(lambda: layouts.gemma_like(4, 9), options)
    manager, prompt = engine.manager, list(range(16))
    engine.add("first", [*prompt, 50], 1)
    engine.run()
    request = engine.add("second", [*prompt, *range(20)], 1)
    blocks, hit = manager.get_computed_blocks(request)
    assert hit == 16
    # What is hit has been used least recently.
    pool = manager.block_pool
    hit_ids = {block.block_id for group in blocks.blocks for block in group if not block.is_null}
    others = [b for b in pool.free_block_queue.get_all_free_blocks() if b.block_id not in hit_ids]
    pool.touch(others)
    pool.free_blocks(others)
    assert manager.allocate_slots(request, 4, hit, blocks, num_external_computed_tokens=1)
    with pytest.raises(IntegrityError, match="its key is of group"):
        engine.check()


def test_requests_that_wait_with_loaded_blocks_starve_each_other() -> None:
    """Each of them waits for blocks that another holds, for ever; a client has to give up."""
    path = Path(soak.__file__).parent / "cases" / "requests-that-wait-with-loaded-blocks.json"
    recording = Recording.load(path)
    driver = Driver(recording.case, check_every=1)
    for operation in recording.operations:
        driver.apply(operation)
    driver.finish()
    assert isinstance(driver.engine, PatientEngine) and driver.engine.num_starved
