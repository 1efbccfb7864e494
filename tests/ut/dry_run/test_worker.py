# SPDX-License-Identifier: Apache-2.0
"""The worker that only samples: when a request gets tokens, and what its drafter guesses."""

from types import SimpleNamespace

import pytest

from vllm_ascend.dry_run.worker import SamplingWorker


def make_scheduler(num_drafts: int, **num_tokens: int) -> SimpleNamespace:
    requests = {
        name: SimpleNamespace(request_id=name, num_tokens=count, num_computed_tokens=count)
        for name, count in num_tokens.items()
    }
    return SimpleNamespace(requests=requests, num_spec_tokens=num_drafts)


def step(worker: SamplingWorker, *names: str, **drafts: list[int]):
    return worker.execute(
        SimpleNamespace(
            num_scheduled_tokens=dict.fromkeys(names, 1), scheduled_spec_decode_tokens=drafts
        )
    )


def test_a_prompt_in_chunks_gets_its_token_at_its_end():
    scheduler = make_scheduler(0, a=100, b=100)
    scheduler.requests["a"].num_computed_tokens = 99
    result = step(SamplingWorker(scheduler), "a", "b")
    assert result.req_ids == ["a", "b"]
    first, second = result.sampled_token_ids
    assert first == [] and len(second) == 1


def test_without_a_drafter_there_are_no_drafts():
    worker = SamplingWorker(make_scheduler(0, a=10))
    step(worker, "a")
    assert worker.take_draft_token_ids() is None


def test_right_drafts_are_accepted_up_to_the_first_wrong_one():
    worker = SamplingWorker(make_scheduler(3, a=10))
    (token,) = step(worker, "a").sampled_token_ids[0]
    wrong = token + 1
    for drafts, accepted in [
        ([token] * 3, 3),
        ([token, wrong, token], 1),
        ([wrong, token, token], 0),
    ]:
        assert step(worker, "a", a=drafts).sampled_token_ids == [[token] * (accepted + 1)]


def test_drafts_are_for_the_requests_of_the_step_that_go_on():
    scheduler = make_scheduler(2, a=10, b=10, c=10)
    worker = SamplingWorker(scheduler)
    step(worker, "a", "b")
    del scheduler.requests["b"]
    drafts = worker.take_draft_token_ids()
    assert drafts is not None and drafts.req_ids == ["a"]
    assert [len(ids) for ids in drafts.draft_token_ids] == [2]


def test_luck_depends_on_request_and_place_alone():
    """Two workers guess alike, most drafts are right, and not all of them."""
    scheduler = make_scheduler(1, a=1)
    workers = [SamplingWorker(scheduler) for _ in range(2)]
    token = step(workers[0], "a").sampled_token_ids[0][0]
    right = 0
    for place in range(1000):
        scheduler.requests["a"].num_tokens = place
        for worker in workers:
            step(worker, "a")
        drafts = [worker.take_draft_token_ids().draft_token_ids for worker in workers]
        assert drafts[0] == drafts[1]
        right += drafts[0] == [[token]]
    assert right / 1000 == pytest.approx(0.6, abs=0.1)
