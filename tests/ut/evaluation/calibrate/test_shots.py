# SPDX-License-Identifier: Apache-2.0
"""What is sent, and what times tell; exactly, without a server."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend_evaluation.calibrate.shots import (
    SHORTEST,
    Shot,
    decode_observation,
    decode_shot,
    next_turn,
    powers_of_two,
    prefill_lengths,
    prefill_observation,
    round_of_shots,
    start_observation,
)
from vllm_ascend_evaluation.replay.cost.fit import fit
from vllm_ascend_evaluation.replay.cost.model import TERMS, CostModel, StepWork, pairs_among

PLANTED = CostModel(12.0, 40.0, 150.0, 3.0, 2.0, 25.0, 30.0)
CHUNK = 2048


@given(st.integers(1, 1 << 20))
def test_lengths_grow_up_to_the_longest(longest):
    lengths = prefill_lengths(longest)
    assert lengths == sorted(set(lengths)) and lengths[-1] == longest
    assert lengths[0] == min(SHORTEST, longest) and len(lengths) <= 10


@given(st.integers(1, 64))
def test_numbers_of_requests_end_at_the_most(most):
    numbers = powers_of_two(most)
    assert numbers[0] == 1 and numbers[-1] == most and numbers == sorted(set(numbers))


@given(st.integers(1, 1 << 17), st.integers(1, 64), st.integers(16, 8192))
def test_requests_together_are_no_more_than_the_longest_prompt(longest, most, chunk):
    lengths = prefill_lengths(longest)
    shots = round_of_shots(lengths, most, chunk, random.Random(0))
    assert any(shot.is_prefill for shot in shots)
    for shot in shots:
        assert shot.num_requests <= most
        assert 1 <= shot.prompt_tokens * shot.num_requests <= longest


@given(st.integers(1, 1 << 17), st.integers(1, 64))
def test_as_many_as_can_run_answer_together_however_short_prompts_are(longest, most):
    shots = round_of_shots(prefill_lengths(longest), most, CHUNK, random.Random(0))
    together = {shot.num_requests for shot in shots if not shot.is_prefill}
    assert together == set(powers_of_two(min(most, longest)))


def test_a_prompt_in_chunks():
    seen = prefill_observation(5000, 1.5, CHUNK)
    pairs = 2048 * 2049 + 904 * 905 // 2
    assert seen.work == StepWork(3, 3, 5000, pairs, 2048 * 2048 + 904 * 4096)
    assert pairs + seen.work.prefill_context == 5000 * 5001 // 2
    assert seen.duration_ms == 1500.0 and seen.num_arrivals == 1


def test_what_was_cached_is_read_not_computed():
    seen = prefill_observation(5000, 0.5, CHUNK, cached_tokens=4096)
    assert seen.work == StepWork(1, 1, 904, 904 * 905 // 2, 904 * 4096)


@given(st.integers(1, 1 << 17), st.integers(0, 99))
def test_a_next_turn_is_as_long_and_has_something_new(length, seed):
    shot = next_turn(Shot(length), random.Random(seed))
    assert shot.prompt_tokens == length and 0 <= shot.known_tokens < length


def test_only_steps_count_in_which_all_answer():
    """The second begins two steps later, while the first has its prompt already."""
    first = [float(step) for step in range(10)]
    second = [float(step) for step in range(2, 12)]
    seen = decode_observation(100, [first, second])
    # From the second's first token at 2 to the first's last one at 9.
    rows = sum(100 + step + 100 + step - 2 for step in range(3, 10))
    assert seen.work == StepWork(7, 14, 14, decode_rows=rows)
    assert seen.duration_ms == 7000.0


def test_each_rank_has_its_part_of_the_requests():
    times = [[float(step) for step in range(10)]] * 4
    one, two = decode_observation(100, times), decode_observation(100, times, num_ranks=2)
    assert two.work == StepWork(9, 18, 18, decode_rows=one.work.decode_rows // 2)
    assert (one.work.num_requests, one.duration_ms) == (36, two.duration_ms)


def test_a_pause_is_no_work():
    times = [float(step) for step in range(10)] + [60.0 + step for step in range(10)]
    assert decode_observation(100, [times]).duration_ms == 19_000.0


def test_requests_that_did_not_answer_together_tell_nothing():
    assert decode_observation(100, [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]) is None


def starting(groups, prompt_tokens, model):
    """Return when tokens come of requests, so many of which are computed in each step in turn."""
    now, times = model.front_end_ms, []
    for step in range(len(groups) + 8):
        new = groups[step] if step < len(groups) else 0
        rows = sum(prompt_tokens + len(of) for of in times)
        work = StepWork(1, len(times), len(times), decode_rows=rows)
        work += StepWork(0, new, new * prompt_tokens, new * pairs_among(prompt_tokens))
        now += model.step_duration_ms(work)
        times += [[] for _ in range(new)]
        for number, of in enumerate(times):
            of.append(100 + (now + number / 100) / 1000)  # the client hears of one by one
    return times


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 100))
def test_the_time_until_all_have_begun_is_that_of_prompts_beside_answers(groups, prompt_tokens):
    times = starting(groups, prompt_tokens, PLANTED)
    seen = start_observation(prompt_tokens, 100.0, times, CHUNK)
    assert seen.work.num_steps == len(groups) and seen.num_arrivals == 1
    assert seen.said_ms(PLANTED) == pytest.approx(seen.duration_ms, abs=1.0)


def test_each_rank_begins_its_part_of_the_requests():
    one, four = (starting([1, number], 100, PLANTED) for number in (3, 7))
    seen = start_observation(100, 100.0, four, CHUNK, num_ranks=2)
    # Of eight requests one began a step earlier, so that half a token is each rank's.
    assert seen.work == start_observation(100, 100.0, one, CHUNK).work._replace(
        num_requests=4, num_tokens=400, decode_rows=50
    )


def test_prompts_that_are_cut_somewhere_tell_nothing_of_their_start():
    times = starting([1, 3], 600, PLANTED)
    assert start_observation(600, 100.0, times, CHUNK) is None
    assert start_observation(600, 100.0, times, 2 * CHUNK) is not None


def tokens_of(shot, model):
    """Return when tokens of requests come that have been let in at once: prompts, then answers."""
    now = model.front_end_ms
    times = [[] for _ in range(shot.num_requests)]
    for number in range(shot.num_requests):
        steps = -(-shot.prompt_tokens // CHUNK)
        for others in times[:number]:
            others += [now] * steps  # when exactly does not matter: not all answer yet
        prefill = prefill_observation(shot.prompt_tokens, 0.0, CHUNK)
        now += prefill.said_ms(model) - model.front_end_ms
        times[number].append(now)
    while min(map(len, times)) < shot.output_tokens:
        live = [of for of in times if len(of) < shot.output_tokens]
        rows = sum(shot.prompt_tokens + len(of) for of in live)
        now += model.step_duration_ms(StepWork(1, len(live), len(live), decode_rows=rows))
        for of in live:
            of.append(now)
    return [[ms / 1000 for ms in of] for of in times]


def observed(shot):
    times = tokens_of(shot, PLANTED)
    if shot.is_prefill:
        return prefill_observation(shot.prompt_tokens, times[0][0], CHUNK)
    return decode_observation(shot.prompt_tokens, times)


def test_rounds_of_shots_tell_every_term():
    draw = random.Random(3)
    lengths = prefill_lengths(32_000)
    shots = [shot for _ in range(3) for shot in round_of_shots(lengths, 16, CHUNK, draw)]
    points = [observed(shot) for shot in shots]
    assert all(points)
    found = fit(points)
    for term in TERMS:
        assert getattr(found.model, term) == pytest.approx(getattr(PLANTED, term), rel=0.02), term
    assert found.error.worst < 1.0


def test_a_shot_says_what_it_is():
    assert str(Shot(5000)) == "a prompt of 5,000 tokens"
    assert str(Shot(5000, known_tokens=4000)) == "a prompt of 5,000 tokens, 4,000 of them known"
    assert str(decode_shot(640, 1, 2048)) == "an answer behind 640 tokens"
    assert str(decode_shot(640, 4, 2048)) == "4 answers behind 640 tokens"
