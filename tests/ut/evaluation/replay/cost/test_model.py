# SPDX-License-Identifier: Apache-2.0
"""What a step does, and how long it takes."""

from types import SimpleNamespace

import pytest

from vllm_ascend.dry_run.layouts import dsv4_flash_gpu
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.dry_run.worker import SamplingWorker
from vllm_ascend_evaluation.replay.cost.model import CostModel, StepWork


def step_of(new=(), cached=(), drafts=None):
    """Return a step: (computed before, computed now) of new requests, with answered of others."""
    scheduled = {f"n{i}": now for i, (_, now) in enumerate(new)}
    scheduled |= {f"c{i}": now for i, (_, now, _) in enumerate(cached)}
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=f"n{i}", num_computed_tokens=before)
            for i, (before, _) in enumerate(new)
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[f"c{i}" for i in range(len(cached))],
            num_computed_tokens=[before for before, _, _ in cached],
            num_output_tokens=[answered for _, _, answered in cached],
        ),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens=drafts or {},
    )


@pytest.mark.parametrize(
    ("step", "work"),
    [
        (step_of(), StepWork()),
        # Each token of a prompt attends to itself and to all before it.
        (step_of(new=[(0, 3)]), StepWork(1, 1, 3, 1 + 2 + 3)),
        (step_of(new=[(10, 2)]), StepWork(1, 1, 2, 1 + 2, 2 * 10)),
        # A later chunk of a prompt, even of one token, is no answer.
        (step_of(cached=[(10, 2, 0)]), StepWork(1, 1, 2, 1 + 2, 2 * 10)),
        (step_of(cached=[(10, 1, 0)]), StepWork(1, 1, 1, 1, 10)),
        (step_of(cached=[(10, 1, 1), (20, 1, 7)]), StepWork(1, 2, 2, decode_rows=11 + 21)),
        # Drafts are computed at once, over rows that are read once.
        (step_of(cached=[(10, 3, 1)], drafts={"c0": [5, 6]}), StepWork(1, 1, 3, decode_rows=13)),
        # Preempted: its prompt and what it had answered are computed anew.
        (step_of(cached=[(0, 4, 2)]), StepWork(1, 1, 4, 1 + 2 + 3 + 4)),
        (step_of(new=[(0, 2)], cached=[(8, 1, 1)]), StepWork(1, 2, 3, 3, decode_rows=9)),
    ],
)
def test_what_a_step_does(step, work):
    assert StepWork.of(step) == work


def test_what_the_real_scheduler_makes_is_understood():
    """A prompt of 500 tokens in chunks of 200, and an answer of three."""
    options = SchedulerOptions(num_blocks=4096, max_num_seqs=2, max_num_batched_tokens=200)
    scheduler = build_scheduler(dsv4_flash_gpu(), options)
    worker = SamplingWorker(scheduler)
    scheduler.add_request(make_request(scheduler, "a", list(range(1, 501)), 3))
    works = []
    while scheduler.requests:
        output = scheduler.schedule()
        works.append(StepWork.of(output))
        scheduler.update_from_output(output, worker.execute(output))
    works = [work for work in works if work.num_tokens]
    assert sum(work.num_tokens for work in works) == 502
    pairs = sum(work.prefill_pairs + work.prefill_context for work in works)
    assert pairs == 500 * 501 // 2
    assert sum(work.prefill_context for work in works) == 200 * 200 + 100 * 400
    assert [work.decode_rows for work in works] == [0] * (len(works) - 2) + [501, 502]


def test_the_two_number_model_is_as_it_was():
    model = CostModel(20.0, 60.0)
    assert CostModel() == model
    for tokens in (0, 1, 7, 8192):
        work = StepWork(1, 3, tokens, 1000 * tokens, 9, 500)
        assert model.step_duration_ms(work) == 20.0 + 60.0 * tokens / 1000.0
    assert model.parameters() == {"step_ms": 20.0, "token_us": 60.0}


@pytest.mark.parametrize(
    ("term", "work", "ms"),
    [
        ("step_ms", StepWork(), 2.0),
        ("token_us", StepWork(1, 0, 1000), 2.0),
        ("request_us", StepWork(1, 1000), 2.0),
        ("prefill_pair_ns", StepWork(1, 0, 0, 1_000_000), 2.0),
        ("prefill_context_ns", StepWork(prefill_context=1_000_000), 2.0),
        ("decode_row_ns", StepWork(decode_rows=1_000_000), 2.0),
    ],
)
def test_each_term_has_its_unit(term, work, ms):
    model = CostModel(**{"step_ms": 0.0, "token_us": 0.0, term: 2.0})
    assert model.step_duration_ms(work) == pytest.approx(ms)


def test_works_add_up():
    one, two = StepWork(1, 2, 300, 4000, 70, 50_000), StepWork(1, 1, 7, decode_rows=900)
    assert one + two == StepWork(2, 3, 307, 4000, 70, 50_900)
