# SPDX-License-Identifier: Apache-2.0
"""The worker accepts what a scheduler may do and names what it must not do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from vllm.v1.core.sched.output import SchedulerOutput

from tests.release_marks import WHERE_VLLM_HAS_DSPARK
from tests.ut.evaluation.oracle.conftest import Bench
from vllm_ascend_evaluation.oracle import ContentViolation
from vllm_ascend_evaluation.oracle.digests import GARBAGE

PROMPT = list(range(20))


def test_a_plain_request_is_fine(bench: Bench) -> None:
    """Prefill in chunks, decode, and a second request that hits the first one's blocks."""
    bench.add("a", PROMPT)
    bench.run()
    bench.add("b", PROMPT)
    bench.run()
    assert bench.worker.num_steps > 4
    # The hit saved 16 of the second prompt's 20 tokens.
    assert bench.worker.num_tokens == 20 + 3 + 4 + 3


def test_equal_prompts_continue_equally(bench: Bench) -> None:
    answers = {}
    for request_id in "ab":
        bench.add(request_id, PROMPT, max_tokens=6)
        while request_id in bench.scheduler.requests:
            request = bench.scheduler.requests[request_id]
            bench.step()
        answers[request_id] = list(request.output_token_ids)
    assert answers["a"] == answers["b"]
    assert len(answers["a"]) == 6


def first_output(bench: Bench) -> SchedulerOutput:
    bench.add("a", PROMPT)
    return bench.scheduler.schedule()


def change_new(output: SchedulerOutput, **changes) -> SchedulerOutput:
    request = replace(output.scheduled_new_reqs[0], **changes)
    return replace(output, scheduled_new_reqs=[request])


def with_null_block(output: SchedulerOutput) -> SchedulerOutput:
    ids = [list(group) for group in output.scheduled_new_reqs[0].block_ids]
    ids[3][2] = 0
    return change_new(output, block_ids=tuple(ids))


def with_missing_block(output: SchedulerOutput) -> SchedulerOutput:
    ids = output.scheduled_new_reqs[0].block_ids
    return change_new(output, block_ids=(*ids[:3], ids[3][:-1]))


def with_free_block(output: SchedulerOutput) -> SchedulerOutput:
    ids = [list(group) for group in output.scheduled_new_reqs[0].block_ids]
    ids[3][2] = 79
    return change_new(output, block_ids=tuple(ids))


def with_block_twice(output: SchedulerOutput) -> SchedulerOutput:
    ids = [list(group) for group in output.scheduled_new_reqs[0].block_ids]
    ids[3][2] = ids[3][1]
    return change_new(output, block_ids=tuple(ids))


def with_a_hit_that_never_was(output: SchedulerOutput) -> SchedulerOutput:
    return replace(
        change_new(output, num_computed_tokens=8),
        num_scheduled_tokens={"a": 12},
    )


def with_too_many_tokens(output: SchedulerOutput) -> SchedulerOutput:
    return replace(output, num_scheduled_tokens={"a": 21})


@pytest.mark.parametrize(
    ("corrupt", "problem"),
    [
        (with_null_block, "writes into the null block"),
        (with_missing_block, "has no block for tokens that it computes"),
        (with_free_block, "given a block that the pool counts as free"),
        (with_block_twice, "given a block that another request was given in the same step"),
        (with_a_hit_that_never_was, "reads a row that nobody has written"),
        (with_too_many_tokens, r"is to compute tokens \[0, 21\) of 20"),
    ],
)
def test_wrong_outputs_are_refused(
    bench: Bench, corrupt: Callable[[SchedulerOutput], SchedulerOutput], problem: str
) -> None:
    output = corrupt(first_output(bench))
    with pytest.raises(ContentViolation, match=problem) as caught:
        bench.worker.execute(output)
    assert caught.value.request_id == "a"


def test_a_violation_names_everything(bench: Bench) -> None:
    """Group, kind, token, block, row and who the block was given to."""
    bench.add("a", PROMPT)
    bench.step()
    # Somebody scribbles over the first token's row in the full-attention group.
    table = bench.worker._requests["a"].tables[3]
    block_id = table.block_ids[0]
    bench.worker._memory.rows[3][block_id, 1] += 5
    bench.worker._memory.epoch[block_id] += 1
    with pytest.raises(ContentViolation) as caught:
        bench.step()
    error = caught.value
    assert (error.group_id, error.kind, error.token) == (3, "full", 1)
    assert (error.block_id, error.row, error.writer) == (block_id, 1, "a")
    assert "written from other tokens" in str(error)


def test_copies_run_before_the_step_and_after_zeroing(bench: Bench) -> None:
    """A page copied into a zeroed block is complete when the step reads it."""
    bench.add("a", PROMPT, max_tokens=8)
    bench.step()
    state = bench.worker._requests["a"]
    source = state.tables[3].block_ids[0]
    spare = 79
    output = bench.scheduler.schedule()
    output.new_block_ids_to_zero = [spare]
    output.kv_cache_block_copies = [(source, spare)]
    bench.worker.execute(output)
    memory = bench.worker._memory
    assert (memory.rows[3][spare] == memory.rows[3][source]).all()


def test_zeroing_a_block_in_use_is_noticed(bench: Bench) -> None:
    bench.add("a", PROMPT, max_tokens=8)
    bench.step()
    output = bench.scheduler.schedule()
    output.new_block_ids_to_zero = [bench.worker._requests["a"].tables[3].block_ids[1]]
    with pytest.raises(ContentViolation, match="nobody has written"):
        bench.worker.execute(output)


def test_progress_that_disagrees_is_noticed(bench: Bench) -> None:
    bench.add("a", PROMPT, max_tokens=8)
    bench.step()
    output = bench.scheduler.schedule()
    output.scheduled_cached_reqs.num_computed_tokens[0] += 1
    with pytest.raises(ContentViolation, match="goes on at token 21, computed are 20"):
        bench.worker.execute(output)


def test_salts_separate_contents(bench: Bench) -> None:
    """Were the salt left out of the keys, the same tokens would be shared across tenants."""
    bench.add("a", PROMPT)
    bench.run()
    bench.add("b", PROMPT)
    # The worker learns the salt from the request; the keys were made without it.
    bench.scheduler.requests["b"].cache_salt = "tenant"
    with pytest.raises(ContentViolation, match="under a key that names another content"):
        bench.step()


@pytest.fixture
def drafting() -> Bench:
    """With three drafts of DSpark per step, whose layers are in the three groups with windows."""
    bench = Bench(draft_method="dspark", num_speculative_tokens=3)
    bench.add("a", PROMPT, max_tokens=8)
    bench.step()
    return bench


@WHERE_VLLM_HAS_DSPARK
def test_rows_of_dspark_are_those_of_their_own_tokens(drafting: Bench) -> None:
    state, memory = drafting.worker._requests["a"], drafting.worker._memory
    assert set(memory.draft_rows) == {0, 1, 2}
    blocks = state.tables[0].block_ids
    rows = memory.draft_rows[0][blocks].reshape(-1)
    assert (rows[12:20] == state.digests.array[13:21]).all()
    assert (rows[20:23] == GARBAGE).all(), "the slots of the next three drafts are scratch"


@WHERE_VLLM_HAS_DSPARK
def test_a_wrong_row_of_dspark_is_noticed(drafting: Bench) -> None:
    block_id = drafting.worker._requests["a"].tables[1].block_ids[4]
    drafting.worker._memory.draft_rows[1][block_id, 3] += 5
    with pytest.raises(ContentViolation, match="written from other tokens") as caught:
        drafting.step()
    assert (caught.value.group_id, caught.value.kind) == (1, "sliding window, draft model")
