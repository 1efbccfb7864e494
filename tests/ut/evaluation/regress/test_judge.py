# SPDX-License-Identifier: Apache-2.0
"""Verdicts: what passes, what does not, and how both move with the numbers."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.ut.evaluation.regress.samples import accuracy, measured, performance, performance_of
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.regress.judge import (
    METRICS,
    NOT_COMPARED,
    NOT_KNOWN,
    PASS,
    REGRESSION,
    Tolerances,
    binomial_variance,
    judge,
    parse_tolerances,
)
from vllm_ascend_evaluation.regress.notes import notes_on, notes_on_noise

TIMES = {
    "ttft-avg": "ttft_avg_ms",
    "ttft-p90": "ttft_p90_ms",
    "tpot-avg": "tpot_avg_ms",
    "tpot-p90": "tpot_p90_ms",
    "throughput": "output_tokens_per_s",
}
names = st.sampled_from(sorted(TIMES))
values = st.floats(0.01, 1e6)
tolerances = st.floats(0, 90)


def outcome(name, baseline, now, tolerance=None):
    """Judge one of the tool's numbers."""
    given_ = {} if tolerance is None else {name: tolerance}
    before = measured(performance=performance(**{TIMES[name]: baseline}))
    after = measured(performance=performance(**{TIMES[name]: now}))
    (verdict,) = [v for v in judge(after, before, Tolerances(given_)) if v.metric.name == name]
    return verdict.outcome


def accuracy_verdict(before, now, errors=2.0):
    (verdict,) = judge(
        measured(accuracy=accuracy(*now)),
        measured(accuracy=accuracy(*before)),
        Tolerances({"accuracy": errors}),
    )
    return verdict


@given(names, values, tolerances)
def test_no_change_is_no_regression(name, value, tolerance):
    assert outcome(name, value, value, tolerance) == PASS


@given(names, values, values, tolerances)
def test_no_improvement_is_a_regression(name, one, other, tolerance):
    better, worse = sorted((one, other), reverse=name == "throughput")
    assert outcome(name, worse, better, tolerance) == PASS


@given(names, values, tolerances, st.floats(0.1, 5))
def test_more_than_allowed_is_a_regression(name, value, tolerance, beyond):
    sign = -1 if name == "throughput" else 1
    allowed = value * (1 + sign * tolerance / 100)
    too_much = value * (1 + sign * (tolerance + beyond) / 100)
    assert outcome(name, value, allowed, tolerance) == PASS
    assert outcome(name, value, too_much, tolerance) == REGRESSION


@given(names, values, values, values, tolerances)
def test_worse_than_a_regression_is_a_regression(name, baseline, one, other, tolerance):
    better, worse = sorted((one, other), reverse=name == "throughput")
    if outcome(name, baseline, better, tolerance) == REGRESSION:
        assert outcome(name, baseline, worse, tolerance) == REGRESSION


@given(names, values, values, tolerances, tolerances)
def test_a_larger_tolerance_lets_no_less_pass(name, baseline, now, one, other):
    small, large = sorted((one, other))
    if outcome(name, baseline, now, small) == PASS:
        assert outcome(name, baseline, now, large) == PASS


@given(names, values, values, tolerances, st.sampled_from([2.0**-10, 2.0**10]))
def test_times_are_compared_in_any_unit(name, baseline, now, tolerance, scale):
    assert outcome(name, baseline, now, tolerance) == outcome(
        name, baseline * scale, now * scale, tolerance
    )


@pytest.mark.parametrize(
    ("name", "worse_percent", "expected"),
    [
        *(("ttft-avg", 5.0, PASS), ("ttft-avg", 5.1, REGRESSION)),
        *(("ttft-p90", 10.0, PASS), ("ttft-p90", 10.1, REGRESSION)),
        *(("tpot-avg", 5.0, PASS), ("tpot-avg", 5.1, REGRESSION)),
        *(("tpot-p90", 10.0, PASS), ("tpot-p90", 10.1, REGRESSION)),
        *(("throughput", -5.0, PASS), ("throughput", -5.1, REGRESSION)),
    ],
)
def test_default_tolerances(name, worse_percent, expected):
    assert outcome(name, 200.0, 200.0 + 2 * worse_percent) == expected


@pytest.mark.parametrize(("hits", "expected"), [(8940, PASS), (8939, REGRESSION), (12_000, PASS)])
def test_the_hit_rate_is_judged_in_points(hits, expected):
    """9,000 of 12,000 tokens are 75 %; half a point are 60 tokens."""
    verdict = judge(
        measured(performance=performance(hits=hits)),
        measured(performance=performance()),
        Tolerances(),
    )[0]
    assert (verdict.metric.name, verdict.outcome) == ("hit-rate", expected)
    assert verdict.change == pytest.approx((hits - 9000) / 120)
    assert (verdict.allowed, verdict.change_unit) == (-0.5, "points")


questions = st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(questions, st.floats(0, 5))
def test_an_accuracy_is_as_good_as_itself(result, errors):
    assert accuracy_verdict(result, result, errors).outcome == PASS


@given(questions, questions)
@example((0, 1), (1, 1))
@example((198, 198), (197, 198))
def test_of_two_accuracies_at_most_one_is_worse(one, other):
    both = {
        accuracy_verdict(one, other).outcome,
        accuracy_verdict(other, one).outcome,
    }
    assert both in ({PASS}, {PASS, REGRESSION})


@pytest.mark.parametrize(("correct", "expected"), [(171, PASS), (156, PASS), (155, REGRESSION)])
def test_gpqa_diamond_within_two_errors(correct, expected):
    """171 of 198 right: two standard errors of the difference are 6.9 to 7.7 points."""
    verdict = accuracy_verdict((171, 198), (correct, 198))
    assert verdict.outcome == expected
    assert -7.7 < verdict.allowed < -6.9


@given(st.integers(1, 10_000), st.data())
def test_the_error_of_an_accuracy_is_never_nothing(num_questions, data):
    correct = data.draw(st.integers(0, num_questions))
    variance = binomial_variance(correct, num_questions)
    assert 0 < variance <= 0.25 / (num_questions + 2)
    assert variance == pytest.approx(binomial_variance(num_questions - correct, num_questions))


def test_what_cannot_be_compared_is_said():
    now = measured(performance=performance(tpot_avg_ms=None), accuracy=accuracy())
    alone = judge(now, None, Tolerances())
    assert {v.outcome for v in alone} == {NOT_COMPARED}
    missing = {"tpot-avg", "acceptance"}  # nothing was drafted
    assert [v.metric.name for v in alone] == [m.name for m in METRICS if m.name not in missing]
    last = judge(now, measured(performance=performance()), Tolerances())[-1]
    assert (last.metric.name, last.outcome) == ("accuracy", NOT_COMPARED)


def test_a_server_that_counts_no_prompt_has_no_hit_rate():
    step = performance()
    (load,) = step.loads
    nothing = replace(load, cache=replace(load.cache, prompt_tokens=0, hit_tokens=0))
    now = measured(performance=replace(step, loads=(nothing,)))
    verdict = judge(now, measured(performance=step), Tolerances())[0]
    assert (verdict.metric.name, verdict.now, verdict.outcome) == ("hit-rate", None, NOT_KNOWN)
    assert verdict.baseline.median == 75
    (note, *_) = notes_on(now, None)
    assert note == "the hit rate is not known: the server counted no prompt tokens"


def test_a_load_that_tells_no_hits_beside_one_that_does_has_none():
    """vLLM leaves the number out where it is 0."""
    step = performance_of({}, {})
    silent = replace(step.loads[0], cache=replace(step.loads[0].cache, hit_tokens=None))
    now = measured(performance=replace(step, loads=(silent, step.loads[1])))
    assert judge(now, None, Tolerances())[0].now.values == (0, 75)


def test_more_than_nothing_cannot_be_told_in_percent():
    before = measured(performance=performance(tpot_avg_ms=0.0))
    verdicts = judge(measured(performance=performance()), before, Tolerances())
    (verdict,) = [v for v in verdicts if v.metric.name == "tpot-avg"]
    assert (verdict.change, verdict.outcome) == (None, REGRESSION)


def test_tolerances_are_read():
    read = parse_tolerances(["ttft-p90=15", "accuracy=1.5"])
    by_name = {metric.name: read.of(metric) for metric in METRICS}
    assert (by_name["ttft-p90"], by_name["accuracy"], by_name["ttft-avg"]) == (15, 1.5, 5)


@pytest.mark.parametrize(
    "text", ["ttft=1", "ttft-avg", "ttft-avg=", "ttft-avg=-1", "ttft-avg=nan", "ttft-avg=inf"]
)
def test_a_bad_tolerance_is_named(text):
    with pytest.raises(BadInputError, match=rf"--tolerance {text}: .*hit-rate, acceptance,"):
        parse_tolerances([text])


def test_the_error_of_a_difference():
    """Of 50 right in 100 each: sqrt(2 * 0.25 / 102), in points."""
    verdict = accuracy_verdict((50, 100), (50, 100), errors=1.0)
    assert verdict.allowed == pytest.approx(-100 * math.sqrt(0.5 / 102))


def ttft(baseline, now):
    """Judge the mean TTFT of several loads."""
    before, after = (
        measured(performance=performance_of(*({"ttft_avg_ms": value} for value in values)))
        for values in (baseline, now)
    )
    return next(v for v in judge(after, before, Tolerances()) if v.metric.name == "ttft-avg")


def test_medians_are_judged():
    """One slow load of three says nothing; two do."""
    assert ttft([100, 101, 102], [100, 101, 500]).outcome == PASS
    verdict = ttft([100, 101, 500], [100, 200, 500])
    assert (verdict.outcome, verdict.now.median, verdict.baseline.median) == (REGRESSION, 200, 101)
    assert verdict.to_dict()["now"] == {"median": 200, "min": 100, "max": 500, "loads": 3}


def test_the_noise_is_the_range_of_the_noisier_side():
    assert ttft([100, 100, 110], [200, 200, 210]).noise == pytest.approx(10)
    assert ttft([100], [200, 200, 210]).noise == pytest.approx(5)
    assert ttft([100], [200]).noise is None
    hits = measured(performance=performance_of({"hits": 9000}, {"hits": 9120}))
    verdict = judge(hits, None, Tolerances())[0]
    assert (verdict.noise, verdict.change_unit) == (pytest.approx(1), "points")
    assert verdict.now.median == pytest.approx(75.5)


def test_noise_above_the_tolerance_is_said():
    loud, quiet = ttft([100, 104, 106], [100, 104, 106]), ttft([100, 101], [100, 104])
    (note,) = notes_on_noise([loud, quiet, loud])
    assert "allowed (TTFT avg 5.77 %, TTFT avg 5.77 %): a quieter machine" in note
    assert notes_on_noise([quiet]) == []
