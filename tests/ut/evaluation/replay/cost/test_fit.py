# SPDX-License-Identifier: Apache-2.0
"""A fit finds what was planted, and tells its error on what it has not seen."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.calibrate.shots import prefill_observation
from vllm_ascend_evaluation.replay.cost.fit import Observation, error_of, fit
from vllm_ascend_evaluation.replay.cost.model import TERMS, CostModel, StepWork


def works(number=40):
    """Return prefills of several chunks, behind hits, and decodes of several requests, mixed."""
    draw, made = random.Random(1), []
    for _ in range(number // 2):
        tokens, chunk = draw.randint(100, 30_000), draw.choice((512, 2048))
        hit = draw.choice((0, tokens // 2, tokens - 50))
        made.append(prefill_observation(tokens, 0.0, chunk, hit).work)
        live, context = draw.randint(1, 32), draw.randint(100, 30_000)
        made.append(StepWork(1, live, live, decode_rows=live * context))
    draw.shuffle(made)
    return made


def observed(model, noise=0.0):
    """Return what a machine of this model would show: a prefill is the first token of a request."""
    draw, points = random.Random(2), []
    for work in works():
        point = Observation(work, 0.0, num_arrivals=int(work.prefill_pairs > 0))
        error = 1 + draw.uniform(-noise, noise)
        points.append(point._replace(duration_ms=point.said_ms(model) * error))
    return points


terms = st.one_of(st.just(0.0), st.floats(0.01, 100.0))


@given(st.floats(0.1, 100.0), st.tuples(*[terms] * 6))
def test_planted_terms_are_found(step_ms, others):
    token_us, request_us, pair_ns, context_ns, row_ns, front_end_ms = others
    attention = pair_ns / 10, context_ns / 10, row_ns * 10
    planted = CostModel(step_ms, token_us, request_us, *attention, front_end_ms)
    found = fit(observed(planted))
    for point in observed(planted):
        assert point.said_ms(found.model) == pytest.approx(point.duration_ms, rel=1e-3)
    assert found.error.num_points == 10 and found.num_fitted == 30
    assert found.error.worst < 0.1


@given(st.lists(st.floats(0.01, 1e4), min_size=40, max_size=40))
def test_no_term_is_ever_negative(durations):
    points = zip(observed(CostModel()), durations, strict=True)
    model = fit([point._replace(duration_ms=ms) for point, ms in points]).model
    assert all(getattr(model, term) >= 0 for term in TERMS)


def test_the_terms_of_a_real_machine_are_found_one_by_one():
    planted = CostModel(12.0, 40.0, 150.0, 3.0, 2.0, 25.0, 30.0)
    found = fit(observed(planted, noise=0.02)).model
    for term in TERMS:
        assert getattr(found, term) == pytest.approx(getattr(planted, term), rel=0.3), term


def test_where_times_scatter_the_model_is_their_mean():
    """A machine that is slower for half of the time: its mean decides how long queues are."""
    planted = CostModel(12.0, 40.0, 150.0, 3.0, 2.0, 25.0, 30.0)
    draw, points = random.Random(3), observed(planted) * 20
    points = [each._replace(duration_ms=each.duration_ms * draw.choice((1, 2))) for each in points]
    found = fit(points).model
    ratios = [each.duration_ms / each.said_ms(found) for each in points]
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.02)


def test_without_any_context_it_costs_what_other_pairs_do():
    """Nobody hit anything, and each prompt was computed in one step."""
    planted = CostModel(12.0, 40.0, 150.0, 3.0, 3.0, 25.0, 30.0)
    points = [
        point._replace(work=point.work._replace(prefill_context=0)) for point in observed(planted)
    ]
    found = fit([each._replace(duration_ms=each.said_ms(planted)) for each in points]).model
    assert found.prefill_context_ns == found.prefill_pair_ns > 0


def test_the_error_is_of_the_points_kept_apart():
    """Only those are wrong here, all by as much, and the fit does not see them."""
    planted = CostModel(12.0, 40.0, 150.0, 3.0, 2.0, 25.0, 30.0)
    points = [
        point._replace(duration_ms=point.duration_ms * (2 if number % 4 == 3 else 1))
        for number, point in enumerate(observed(planted))
    ]
    found = fit(points)
    assert found.model.step_ms == pytest.approx(12.0, rel=1e-3)
    assert found.error.median == pytest.approx(50.0, rel=1e-3)
    assert error_of(planted, points).worst == pytest.approx(50.0, rel=1e-3)


def test_steps_and_requests_are_counted():
    model = CostModel(2.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0)
    one, two = StepWork(1, 2, 300, 4000, 70, 50_000), StepWork(1, 1, 7, decode_rows=900)
    steps_ms = model.step_duration_ms(one) + model.step_duration_ms(two)
    assert Observation(one + two, 0.0, 2).said_ms(model) == pytest.approx(steps_ms + 26.0)


def test_too_few_measurements_are_refused():
    with pytest.raises(BadInputError, match="6 measurements are too few for 7 terms"):
        fit(observed(CostModel())[:6])


def test_measurements_that_are_all_alike_are_refused():
    alike = [Observation(StepWork(1, 1, 100, 5050), 20.0)] * 20
    with pytest.raises(BadInputError, match="do not tell the terms"):
        fit(alike)
